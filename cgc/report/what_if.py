"""What one change of the kernel that bounds the speed would do, by its cost function."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace

from cgc.errors import PlacementError
from cgc.kernels.configurations import Configuration
from cgc.kernels.generated import loop_changes
from cgc.kernels.graph import Kernel
from cgc.kernels.nest_cost import nest_shares
from cgc.lair.nest import LoopNest
from cgc.performance.layers import PlacedLayer, StreamedPerformance
from cgc.placement.shapes import GraphShapes, KernelShapes
from cs_toolkit.fabric import Fabric

_HALF_BYTES = 2
_GAIN = 0.99


@dataclass(frozen=True)
class KernelChange:
    """A change, alone.

    Attributes:
        change: in words, with the size that it comes to.
        cycles: per sample, at the fastest layout that the fabric then has; None where none fits.
        helps: whether that is noticeably less than what the fastest layout takes now.
        note: what else there is to say, or empty.
    """

    change: str
    cycles: int | None
    helps: bool
    note: str = ""


def estimate_kernel_changes(
    kernel: Kernel, cycles: int, shapes: KernelShapes, fabric: Fabric, fill: float
) -> list[KernelChange]:
    """More PEs first, then what the sizes of the kernel allow.

    Args:
        kernel: the one that bounds the speed.
        cycles: that it takes now.
        shapes: its layouts on the fabric.
        fabric: what it may be placed on.
        fill: samples in flight, see `Kernel.samples`.
    """
    changes, least = [_more_pes(cycles, shapes)], int(shapes.cycles[0])
    for change, changed in _changed(kernel, shapes):
        found = _fastest(changed, fabric, fill)
        changes.append(KernelChange(change, found, found is not None and found < _GAIN * least))
    return changes


def find_slowest_nest(kernel: Kernel, layout: Configuration) -> tuple[LoopNest, float]:
    """The loop nest of a generated kernel that takes most of its time, and its share of that."""
    assert kernel.loops is not None, "a generated kernel has loops"
    return max(nest_shares(kernel.loops, kernel.parameters, layout), key=lambda found: found[1])


def describe_kernel_change(change: KernelChange) -> str:
    """What a change comes to."""
    if change.cycles is None:
        return "does not fit"
    gain = f"{change.cycles:,} cycles"
    notes = [note for note in (change.note, "" if change.helps or change.note else "no faster") if note]
    return ", ".join([gain, *notes])


def _more_pes(cycles: int, shapes: KernelShapes) -> KernelChange:
    fastest = shapes.layouts[shapes.fastest]
    if fastest.cycles < _GAIN * cycles:
        return KernelChange("more PEs", fastest.cycles, True, f"on {fastest.area:,} PEs")
    count = len(shapes.cycles)
    return KernelChange(
        "more PEs", fastest.cycles, False, f"none of its {count:,} layouts on this fabric is faster"
    )


def _fastest(kernel: Kernel, fabric: Fabric, fill: float) -> int | None:
    try:
        shapes = GraphShapes([kernel], fabric).at(fill)
    except PlacementError:
        return None
    return None if shapes is None else int(shapes[0].cycles[0])


def _changed(kernel: Kernel, shapes: KernelShapes) -> Iterator[tuple[str, Kernel]]:
    """Changes in words, and the kernel that they lead to."""
    sizes = kernel.parameters
    if kernel.loops is None:
        for change, parameters in _changes(sizes):
            yield change, replace(kernel, parameters=parameters)
        return
    nest, _ = find_slowest_nest(kernel, shapes.layouts[shapes.fastest])
    for change, share, loops in loop_changes(kernel.loops, nest):
        yield change, replace(kernel, parameters=_scaled(sizes, ("stash_bytes",), share), loops=loops)


def _changes(sizes: Mapping[str, int]) -> Iterator[tuple[str, dict[str, int]]]:
    """Changes in words, and the parameters that they lead to."""
    if sizes.get("element_bytes", 0) > _HALF_BYTES:
        share = _HALF_BYTES / sizes["element_bytes"]
        yield "16-bit elements", {**_scaled(sizes, ("stash_bytes",), share), "element_bytes": _HALF_BYTES}
    for name, (words, others) in _HALVES.items():
        if sizes.get(name, 0) < 2 or (name == "rows" and "lines" in sizes):
            continue
        half = _scaled(sizes, (name, *others), 0.5)
        yield f"{words} ({half[name]:,})", half
    if sizes.get("step_millicycles", 0):
        yield f"a batch twice as large ({2 * sizes['batch']:,})", {**sizes, "batch": 2 * sizes["batch"]}


_PER_ROW = ("epilogue_millicycles", "work_millicycles", "streamed_elements", "stash_bytes")
_PER_WEIGHT = ("resident_bytes", "update_bytes", "step_millicycles")
_HALVES: Mapping[str, tuple[str, tuple[str, ...]]] = {
    "lines": ("images of half as many lines", ("rows", *_PER_ROW)),
    "rows": ("half as many rows a sample", _PER_ROW),
    "row_elements": (
        "rows of half as many elements",
        ("line_elements", "work_millicycles", "streamed_elements", "stash_bytes", *_PER_WEIGHT),
    ),
    "inputs": ("half as many inputs", ("stash_bytes", *_PER_WEIGHT)),
    "outputs": ("half as many outputs", ("epilogue_millicycles", *_PER_WEIGHT)),
    "keys": ("half as many keys", ()),
    "heads": ("half as many heads", ("width", *_PER_WEIGHT)),
}
"""By the name of a size: the change to half of it in words, and what else halves with it."""


def _scaled(sizes: Mapping[str, int], names: tuple[str, ...], share: float) -> dict[str, int]:
    return {name: _part(value, share) if name in names else value for name, value in sizes.items()}


def _part(value: int, share: float) -> int:
    """A share of a size, rounded up, so that what was there stays there."""
    return -int(-value * share // 1)


_STREAMED_GAIN = 1.01

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
        changes: what changes of the kernel would do, each alone.
    """

    layer: str
    kernel: Kernel
    cycles: int
    changes: tuple[KernelChange, ...]


def estimate_step_changes(
    now: StreamedPerformance, estimate: Estimate, batch_size: int
) -> tuple[StepChange, ...]:
    """A larger batch; of one in parts, activations of half the size, or no parts where there is room."""
    changes = [(f"a batch twice as large ({2 * batch_size:,})", 2, 1.0)]
    if now.fits_at_once:
        changes.append(("the whole batch at once", 1, 1 / now.micro_batches))
    elif now.micro_batches > 1:
        changes.append(("activations of half as many bytes", 1, 0.5))
    least = _STREAMED_GAIN * batch_size / now.step_s
    found = ((words, times * batch_size / estimate(times, share).step_s) for words, times, share in changes)
    return tuple(StepChange(words, rate, rate > least) for words, rate in found)


def find_slowest_kernel(layer: PlacedLayer, fabric: Fabric) -> SlowestKernel | None:
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
    changes = () if shapes is None else tuple(estimate_kernel_changes(waiting, cycles, shapes[0], box, 1.0))
    return SlowestKernel(layer.name, kernel, cycles, changes)
