"""Overhead of the launchers, and their response time."""

from __future__ import annotations

import statistics
import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from benchmarks.harness import Row, interleave

ROOT = Path(__file__).resolve().parent.parent
ROUNDS = 9


def rows() -> list[Row]:
    """Overhead of `csrun_cpu true` over `true`, time of `csrun_wse --help`."""
    figures = interleave(
        {
            "true": _seconds(["true"]),
            "csrun_cpu": _seconds(["bin/csrun_cpu", "true"]),
            "csrun_wse": _seconds(["bin/csrun_wse", "--help"]),
        },
        ROUNDS,
    )
    overhead = statistics.median(
        ours - plain for ours, plain in zip(figures["csrun_cpu"], figures["true"], strict=True)
    )
    help_s = statistics.median(figures["csrun_wse"])
    true_s = statistics.median(figures["true"])
    return [
        Row(
            "`csrun_cpu true`, launcher overhead",
            f"{overhead:.3f} s",
            f"`true` {true_s:.3f} s",
            None,
            "< 0.5 s",
            overhead < 0.5,
        ),
        Row("`csrun_wse --help`", f"{help_s:.3f} s", "", None, "< 0.3 s", help_s < 0.3),
    ]


def _seconds(command: Sequence[str]) -> Callable[[], float]:
    def measure() -> float:
        started = time.perf_counter()
        subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
        return time.perf_counter() - started

    return measure
