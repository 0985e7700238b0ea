"""What one change of a step with one layer at a time would do, by the estimate of a step."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from cgc.kernels.graph import Kernel
from cgc.performance.layer_costs import PlacedLayer
from cgc.performance.layers import StreamedPerformance
from cgc.placement.shapes import GraphShapes
from cgc.report.levers import Lever, find_levers
from cs_toolkit.fabric import Fabric

_GAIN = 1.01

Estimate = Callable[[int, float], StreamedPerformance]
"""Of a step with so many times the samples, whose activations take that share of their bytes."""


@dataclass(frozen=True)
class StepChange:
    """A change of the step, alone.

    Attributes:
        change: in words, with the size that it comes to.
        samples_per_s: that it leads to.
        helps: whether that is noticeably more than now.
    """

    change: str
    samples_per_s: float
    helps: bool


@dataclass(frozen=True)
class SlowestKernel:
    """The kernel that sets the pace of a layer.

    Attributes:
        layer: its name.
        kernel: of one copy of the layer.
        cycles: that it takes for a sample.
        levers: what changes of the kernel would do, each alone.
    """

    layer: str
    kernel: Kernel
    cycles: int
    levers: tuple[Lever, ...]


def step_changes(now: StreamedPerformance, estimate: Estimate, batch_size: int) -> tuple[StepChange, ...]:
    """A larger batch; of one in parts, activations of half the size, or no parts where there is room."""
    changes = [(f"a batch twice as large ({2 * batch_size:,})", 2, 1.0)]
    if now.fits_at_once:
        changes.append(("the whole batch at once", 1, 1 / now.micro_batches))
    elif now.micro_batches > 1:
        changes.append(("activations of half as many bytes", 1, 0.5))
    least = _GAIN * batch_size / now.step_s
    found = ((words, times * batch_size / estimate(times, share).step_s) for words, times, share in changes)
    return tuple(StepChange(words, rate, rate > least) for words, rate in found)


def slowest_kernel(layer: PlacedLayer, fabric: Fabric) -> SlowestKernel | None:
    """The kernel that sets the pace of a layer, and what would make it faster; None without a kernel.

    Args:
        layer: the layer.
        fabric: the whole wafer.
    """
    copies, kernel = layer.plan.copies, layer.plan.slowest_kernel
    if copies is None or kernel is None:
        return None
    box = fabric.model_copy(update={"width": copies.width, "height": copies.height})
    cycles = copies.placement.layouts[kernel.name].compute_cycles
    waiting = kernel.without_stash()
    shapes = GraphShapes([waiting], box).at(1.0)
    levers = () if shapes is None else tuple(find_levers(waiting, cycles, shapes[0], box, 1.0))
    return SlowestKernel(layer.name, kernel, cycles, levers)
