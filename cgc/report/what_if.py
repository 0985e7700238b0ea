"""What-if estimates: how fast a kernel would be with one change, by the cost model."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from cgc.errors import PlacementError
from cgc.kernels.configurations import Configuration
from cgc.kernels.generated import loop_changes
from cgc.kernels.graph import Kernel
from cgc.kernels.nest_cost import nest_shares
from cgc.lair.nest import LoopNest
from cgc.performance.layers import LayerCost, PlacedLayer, StreamedPerformance
from cgc.placement.shapes import GraphShapes, KernelShapes
from cs_toolkit.fabric import Fabric

_HALF_BYTES = 2  # of an element of 16 bits

_FEWER_CYCLES = 0.99  # a change helps if it takes fewer than this share of the cycles

# Changes of a kernel that are not sizes of the model.
_MORE_PES, _IN_16_BITS, _LARGER_BATCH = "more PEs", "16-bit elements", "a batch twice as large"

_PER_ROW = ("epilogue_millicycles", "work_millicycles", "streamed_elements", "stash_bytes")
_PER_WEIGHT = ("resident_bytes", "update_bytes", "step_millicycles")
# By the name of a size: the change that halves it, and the other sizes that are halved with it.
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


@dataclass(frozen=True)
class KernelChange:
    """A single change of a kernel and its estimated effect.

    Attributes:
        change: description, with the resulting size.
        cycles: per sample, at the fastest layout on the fabric after the change; None if none fits.
        helps: whether the kernel becomes noticeably faster than its fastest layout is now.
        note: a further remark, or empty.
    """

    change: str
    cycles: int | None
    helps: bool
    note: str = ""

    @property
    def is_size(self) -> bool:
        """True if the change is a size of the model."""
        return _is_size(self.change)


def _is_size(change: str) -> bool:
    return not change.startswith((_MORE_PES, _IN_16_BITS, _LARGER_BATCH))


def change_sizes(kernel: Kernel, shapes: KernelShapes) -> Iterator[tuple[str, Kernel]]:
    """Yield each change of a kernel's sizes in the model with the changed kernel."""
    yield from ((change, changed) for change, changed in _change_kernel(kernel, shapes) if _is_size(change))


def estimate_kernel_changes(
    kernel: Kernel, cycles: int, shapes: KernelShapes, fabric: Fabric, fill: float
) -> list[KernelChange]:
    """Estimate each change of a kernel by itself: more PEs first, then smaller sizes.

    Args:
        kernel: the kernel that bounds the speed.
        cycles: current cycles per sample.
        shapes: its layouts on the fabric.
        fabric: the PEs that it may be placed on.
        fill: samples in flight, as in `Kernel.samples`.
    """
    fastest = shapes.layouts[shapes.fastest]
    more_pes_help = fastest.cycles < _FEWER_CYCLES * cycles
    note = (
        f"on {fastest.area:,} PEs"
        if more_pes_help
        else f"none of its {len(shapes.cycles):,} layouts on this fabric is faster"
    )
    changes = [KernelChange(_MORE_PES, fastest.cycles, more_pes_help, note)]
    target = _FEWER_CYCLES * int(shapes.cycles[0])
    for change, changed_kernel in _change_kernel(kernel, shapes):
        least = _fewest_cycles(changed_kernel, fabric, fill)
        changes.append(KernelChange(change, least, least is not None and least < target))
    return changes


def find_slowest_nest(kernel: Kernel, layout: Configuration) -> tuple[LoopNest, float]:
    """Return the loop nest that takes most of a generated kernel's time, and its share of that time."""
    assert kernel.loops is not None, "a generated kernel has loops"
    return max(nest_shares(kernel.loops, kernel.parameters, layout), key=lambda found: found[1])


def _fewest_cycles(kernel: Kernel, fabric: Fabric, fill: float) -> int | None:
    """Return the cycles of the kernel's fastest layout; None if no layout fits the fabric."""
    try:
        shapes = GraphShapes([kernel], fabric).shapes_at(fill)
    except PlacementError:
        return None
    return None if shapes is None else int(shapes[0].cycles[0])


def _change_kernel(kernel: Kernel, shapes: KernelShapes) -> Iterator[tuple[str, Kernel]]:
    """Yield each change with the changed kernel."""
    sizes = kernel.parameters
    if kernel.loops is None:
        for change, parameters in _change_sizes(sizes):
            yield change, replace(kernel, parameters=parameters)
        return
    nest, _ = find_slowest_nest(kernel, shapes.layouts[shapes.fastest])
    for change, share, loops in loop_changes(kernel.loops, nest):
        yield change, replace(kernel, parameters=_scale_sizes(sizes, ("stash_bytes",), share), loops=loops)


def _change_sizes(sizes: Mapping[str, int]) -> Iterator[tuple[str, dict[str, int]]]:
    """Yield each change with the changed parameters of a library kernel."""
    if sizes.get("element_bytes", 0) > _HALF_BYTES:
        share = _HALF_BYTES / sizes["element_bytes"]
        yield (
            _IN_16_BITS,
            {**_scale_sizes(sizes, ("stash_bytes",), share), "element_bytes": _HALF_BYTES},
        )
    for name, (change, others) in _HALVES.items():
        if sizes.get(name, 0) < 2 or (name == "rows" and "lines" in sizes):
            continue
        half = _scale_sizes(sizes, (name, *others), 0.5)
        yield f"{change} ({half[name]:,})", half
    if sizes.get("step_millicycles", 0):
        yield f"{_LARGER_BATCH} ({2 * sizes['batch']:,})", {**sizes, "batch": 2 * sizes["batch"]}


def _scale_sizes(sizes: Mapping[str, int], names: tuple[str, ...], share: float) -> dict[str, int]:
    # Rounded up, so that no size becomes 0.
    return {name: -int(-value * share // 1) if name in names else value for name, value in sizes.items()}


# Estimates a step of N times the samples whose activations take the given share of their bytes.
Estimate = Callable[[int, float, Sequence[LayerCost]], StreamedPerformance]


@dataclass(frozen=True)
class SlowestKernel:
    """The slowest kernel of a layer.

    Attributes:
        layer: name of the layer.
        kernel: the kernel in one copy of the layer.
        cycles: cycles per sample.
        changes: estimated changes of the kernel, each by itself.
    """

    layer: str
    kernel: Kernel
    cycles: int
    changes: tuple[KernelChange, ...]


def find_slowest_kernel(layer: PlacedLayer, fabric: Fabric) -> SlowestKernel | None:
    """Return the slowest kernel of a layer with its estimated changes; None if the layer has no kernels.

    Args:
        layer: a placed layer.
        fabric: the whole wafer.
    """
    copies, kernel = layer.plan.copies, layer.plan.slowest_kernel
    if copies is None or kernel is None:
        return None
    box = fabric.model_copy(update={"width": copies.width, "height": copies.height})
    cycles = copies.placement.layouts[kernel.name].compute_cycles
    # As the layer itself is placed: all samples pass forward before the first one passes backward.
    without_stash = kernel.without_stash()
    shapes = GraphShapes([without_stash], box).shapes_at(1.0)
    changes = (
        () if shapes is None else tuple(estimate_kernel_changes(without_stash, cycles, shapes[0], box, 1.0))
    )
    return SlowestKernel(layer.name, kernel, cycles, changes)
