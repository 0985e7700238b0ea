"""The compile report: one result object, and its forms for people and programs."""

from cgc.report.data import plan_json, report_json, streamed_report_json
from cgc.report.model import (
    CompileReport,
    KernelReport,
    ReplicaReport,
    StreamedReport,
    compile_report,
    replicas_report,
    streamed_report,
)
from cgc.report.page import render_html, render_streamed_html
from cgc.report.suggestions import Limit, Reason
from cgc.report.text import kernel_list_text, render_streamed_text, render_text, verdict

__all__ = [
    "CompileReport",
    "KernelReport",
    "Limit",
    "Reason",
    "ReplicaReport",
    "StreamedReport",
    "compile_report",
    "kernel_list_text",
    "plan_json",
    "render_html",
    "render_streamed_html",
    "render_streamed_text",
    "render_text",
    "replicas_report",
    "report_json",
    "streamed_report",
    "streamed_report_json",
    "verdict",
]
