"""The compile report of a step with one layer at a time on the wafer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from cgc.manifest import Bound
from cs_toolkit.fabric import Fabric


@dataclass(frozen=True)
class StreamedReport:
    """What the report shows, unrounded.

    Attributes:
        fabric: what was compiled for.
        batch_size: samples of a step.
        layers: that follow each other.
        step_s: seconds of a step.
        bound_by: what takes most of them.
    """

    fabric: Fabric
    batch_size: int
    layers: int
    step_s: float
    bound_by: Bound

    @property
    def samples_per_s(self) -> float:
        """The rate on the wafer."""
        return self.batch_size / self.step_s


def render_streamed_text(report: StreamedReport) -> str:
    """The report for people."""
    fabric = report.fabric
    return (
        "Estimated Overall Performance\n"
        "-------------------------------\n"
        f"Samples/s:                                     {report.samples_per_s:.1f}\n"
        f"\nWeight streaming: {report.layers:,} layers, {report.step_s:.3g} s a step of "
        f"{report.batch_size:,} samples; bound by {report.bound_by}.\n"
        f"All figures are estimates of time on the wafer ({fabric.name}, {fabric.processing_elements:,} PEs, "
        f"{fabric.clock_hz / 1e6:.0f} MHz), not of the simulator.\n"
    )


def streamed_report_json(report: StreamedReport) -> dict[str, Any]:
    """All figures unrounded, as a JSON value."""
    return {
        "fabric": report.fabric.name,
        "estimate_of": "time on the wafer, not of the simulator",
        "execution": "weight_streaming",
        "batch_size": report.batch_size,
        "overall": {
            "samples_per_s": report.samples_per_s,
            "step_s": report.step_s,
            "layers": report.layers,
            "bound_by": report.bound_by,
        },
    }
