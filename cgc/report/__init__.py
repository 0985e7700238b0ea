"""The compile report: one result object, and its forms for people and programs."""

from cgc.report.data import build_json, build_streamed_json, render_plan
from cgc.report.model import (
    CompileReport,
    KernelReport,
    ReplicaReport,
    StreamedReport,
    build_replicas_report,
    build_report,
    build_streamed_report,
)
from cgc.report.page import render_html, render_streamed_html
from cgc.report.suggestions import Limit, Reason
from cgc.report.text import render_kernel_list, render_streamed_text, render_text, render_verdict

__all__ = [
    "CompileReport",
    "KernelReport",
    "Limit",
    "Reason",
    "ReplicaReport",
    "StreamedReport",
    "build_json",
    "build_replicas_report",
    "build_report",
    "build_streamed_json",
    "build_streamed_report",
    "compile_report",
    "render_html",
    "render_kernel_list",
    "render_plan",
    "render_streamed_html",
    "render_streamed_text",
    "render_text",
    "render_verdict",
]
