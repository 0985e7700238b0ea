"""The result object of the compile report of a step with one layer at a time on the wafer."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from cgc.layers.streamed import StreamedStep
from cgc.layers.traffic import LayerTraffic, peak_bytes
from cgc.performance.layer_costs import PlacedLayer, layer_costs
from cgc.performance.layers import LayerTime, StreamedPerformance, streamed_performance
from cgc.report.streamed_levers import SlowestKernel, StepChange, slowest_kernel, step_changes
from cs_toolkit.fabric import Fabric
from cs_toolkit.step import Precision


@dataclass(frozen=True)
class LayerReport:
    """One layer.

    Attributes:
        placed: its name, and how it lies on the wafer.
        traffic: bytes that come and go in a pass.
        time: seconds in a step.
        recomputed: its backward part computes the forward part again.
    """

    placed: PlacedLayer
    traffic: LayerTraffic
    time: LayerTime
    recomputed: bool


@dataclass(frozen=True)
class StreamedReport:
    """What the report shows, unrounded.

    Attributes:
        fabric: the whole wafer.
        batch_size: samples of a step.
        layers: in the order of the forward pass.
        performance: estimates of time on the wafer.
        notices: sentences on why the step is executed so.
        precision: what activations and their gradients are computed in.
        changes: what changes of the step would do, each alone.
        kernel: the one that sets the pace of the layer that computes the longest.
    """

    fabric: Fabric
    batch_size: int
    layers: tuple[LayerReport, ...]
    performance: StreamedPerformance
    notices: tuple[str, ...] = ()
    precision: Precision = "float32"
    changes: tuple[StepChange, ...] = ()
    kernel: SlowestKernel | None = None

    @property
    def samples_per_s(self) -> float:
        """The rate on the wafer."""
        return self.batch_size / self.performance.step_s

    @property
    def most_exposed(self) -> LayerReport:
        """The layer with the most transfer that compute does not hide."""
        return max(self.layers, key=lambda layer: layer.time.exposed_s)

    @property
    def slowest(self) -> LayerReport:
        """The layer that computes the longest."""
        return max(self.layers, key=lambda layer: layer.time.compute_s)

    @property
    def active_pes(self) -> int:
        """PEs of the layer that takes the most."""
        return max(layer.placed.plan.active_pes for layer in self.layers)

    @property
    def recomputed(self) -> list[LayerReport]:
        """Layers whose backward part computes the forward part again."""
        return [layer for layer in self.layers if layer.recomputed]


def streamed_report(
    step: StreamedStep,
    placed: Sequence[PlacedLayer],
    recomputed: frozenset[int],
    fabric: Fabric,
    room_bytes: int,
) -> StreamedReport:
    """Collects a step in layers and its estimates.

    Args:
        step: the step.
        placed: its layers.
        recomputed: those of them whose backward part computes the forward part again.
        fabric: the whole wafer.
        room_bytes: what there is for the activations of a batch.
    """
    costs, is_cut = layer_costs(placed, step, recomputed), step.micro_batches > 1

    def estimate(times: int, share: float) -> StreamedPerformance:
        """A step that is cut has the activations of a part; one that is not has those of all samples."""
        parts = math.ceil(step.micro_batches * times * share) if is_cut else 1
        return streamed_performance(
            costs,
            times * step.batch_size,
            round(peak_bytes(step.schedule) * (1 if is_cut else times * share)),
            room_bytes,
            joined_update=any(one.joined for one in step.schedule.rounds),
            fabric=fabric,
            micro_batches=parts,
        )

    performance = estimate(1, 1.0)
    layers = tuple(
        LayerReport(layer, cost.traffic, time, index in recomputed)
        for index, (layer, cost, time) in enumerate(zip(placed, costs, performance.layers, strict=True))
    )
    report = StreamedReport(fabric, step.batch_size, layers, performance)
    return replace(
        report,
        changes=step_changes(performance, estimate, step.batch_size),
        kernel=slowest_kernel(report.slowest.placed, fabric),
    )
