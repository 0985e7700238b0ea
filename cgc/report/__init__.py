"""The compile report: one record, and its forms for people and programs."""

from cgc.report.data import build_json, render_plan
from cgc.report.limit import Limit, Reason
from cgc.report.model import (
    CompileReport,
    KernelReport,
    PipelinedPart,
    ReplicaReport,
    StreamedPart,
    build_replicas_report,
    build_report,
    build_streamed_report,
)
from cgc.report.page import render_html
from cgc.report.text import render_kernel_list, render_text, render_verdict

__all__ = [
    "CompileReport",
    "KernelReport",
    "Limit",
    "PipelinedPart",
    "Reason",
    "ReplicaReport",
    "StreamedPart",
    "build_json",
    "build_replicas_report",
    "build_report",
    "build_streamed_report",
    "render_html",
    "render_kernel_list",
    "render_plan",
    "render_text",
    "render_verdict",
]
