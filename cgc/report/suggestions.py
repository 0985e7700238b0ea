"""What limits the speed of a placed pipeline, and why it cannot be faster."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

import numpy as np

from cgc.kernels.configurations import Configuration
from cgc.kernels.families import FAMILIES
from cgc.kernels.graph import Kernel, KernelGraph
from cgc.performance.model import INPUT, MEMORY, Performance
from cgc.placement.model import Placement
from cgc.placement.shapes import AREA_PER_SPEED, MOST_OF_FABRIC, KernelShapes, areas, paying_target
from cgc.report.what_if import KernelChange, find_slowest_nest
from cs_toolkit.fabric import Fabric


class Reason(Enum):
    """Why the pipeline is not faster."""

    HOST_INPUT = "host_input"
    """The Ethernet links bring samples more slowly than every kernel takes them."""
    ACTIVATIONS = "activations"
    """Samples wait until the wafer's memory has room for their activations."""
    WAFER_FULL = "wafer_full"
    """Faster layouts of all kernels would pay, but together they do not fit on the fabric."""
    FASTEST_LAYOUT = "fastest_layout"
    """The slowest kernel has no faster layout that fits the fabric and the memory of its PEs."""
    AREA_TOO_DEAR = "area_too_dear"
    """Faster layouts exist and would fit, but cost more area than they are worth to the placer."""


@dataclass(frozen=True)
class Limit:
    """What limits the speed.

    Attributes:
        kind: "compute", "transmission", "area" or "memory".
        reason: why.
    """

    kind: str
    reason: Reason


def find_limit(
    graph: KernelGraph, placement: Placement, performance: Performance, shapes: Sequence[KernelShapes]
) -> Limit:
    """Tells the limits apart.

    The placer takes the lowest target of cycles that pays and packs. So area limits the speed where the
    target is above both the one that pays and the fastest layout of every kernel.
    """
    if performance.bottleneck == INPUT:
        return Limit(performance.limit, Reason.HOST_INPUT)
    if performance.limit == MEMORY:
        return Limit(MEMORY, Reason.ACTIVATIONS)
    fastest = {kernel.name: int(own.cycles[0]) for kernel, own in zip(graph.kernels, shapes, strict=True)}
    if placement.target_cycles > max(*fastest.values(), paying_target(graph, AREA_PER_SPEED)):
        return Limit("area", Reason.WAFER_FULL)
    slowest_is_fixed = (
        fastest[performance.bottleneck] >= performance.kernels[performance.bottleneck].deltat_cycles
    )
    return Limit(performance.limit, Reason.FASTEST_LAYOUT if slowest_is_fixed else Reason.AREA_TOO_DEAR)


_LARGEST = 3
_FASTER = 0.9


def suggest_improvements(
    graph: KernelGraph,
    placement: Placement,
    performance: Performance,
    limit: Limit,
    shapes: Sequence[KernelShapes],
    fabric: Fabric,
    changes: Sequence[KernelChange],
) -> tuple[str, ...]:
    """Whole sentences: what would lift the limit, then what would be the limit after that.

    Args:
        graph: the kernels.
        placement: of them.
        performance: estimates of the placed graph.
        limit: what keeps it from being faster.
        shapes: layouts of each kernel that the fabric can hold.
        fabric: what it is placed on.
        changes: what changes of the kernel that bounds the speed would do.
    """
    if limit.reason is Reason.HOST_INPUT:
        return (_smaller_samples(graph, placement, performance, fabric),)
    if limit.reason is Reason.WAFER_FULL:
        return _room(graph, placement, performance, shapes, fabric)
    kernel = graph.by_name[performance.bottleneck]
    if limit.reason is Reason.ACTIVATIONS:
        return (_fewer_waiting(kernel, placement, fabric), *_memory(graph, placement, shapes, fabric))
    own = shapes[graph.kernels.index(kernel)]
    if limit.reason is Reason.AREA_TOO_DEAR:
        return (
            _dear(kernel, placement.layouts[kernel.name], own),
            _work(kernel, own.layouts[own.fastest], changes),
        )
    layout = placement.layouts[kernel.name]
    first = (
        _stream(kernel, layout, changes) if limit.kind == "transmission" else _work(kernel, layout, changes)
    )
    return (first, _next_limit(graph, performance, shapes, fabric))


def _smaller_samples(
    graph: KernelGraph, placement: Placement, performance: Performance, fabric: Fabric
) -> str:
    slowest = max(graph.kernels, key=lambda kernel: placement.layouts[kernel.name].cycles)
    cycles = placement.layouts[slowest.name].cycles
    share = cycles / performance.overall.deltat_cycles
    return (
        f"Samples of {int(graph.input_bytes_per_sample * share):,} bytes, in the place of "
        f"{graph.input_bytes_per_sample:,}, would come as fast as the slowest kernel, {slowest.name}, takes "
        f"them: {_rate(cycles, fabric)}. Send 8-bit pixels or 16-bit numbers and convert them in the model."
    )


def _room(
    graph: KernelGraph,
    placement: Placement,
    performance: Performance,
    shapes: Sequence[KernelShapes],
    fabric: Fabric,
) -> tuple[str, ...]:
    """What a faster pace would take, and how much of the area memory alone needs, whatever the speed."""
    layouts, pace = placement.layouts, performance.overall.deltat_cycles
    slowest = max(range(len(shapes)), key=lambda index: int(shapes[index].cycles[0]))
    least = int(shapes[slowest].cycles[0])
    target = max(int(_FASTER * pace), least)
    limit = f", the least of {graph.kernels[slowest].name}," if target == least else ""
    needed = float(areas(shapes, np.array([target]))[0])
    largest = sorted(layouts, key=lambda name: -layouts[name].area)[:_LARGEST]
    names = ", ".join(f"{name} ({layouts[name].area:,} PEs)" for name in largest)
    room = (
        f"{target:,} cycles{limit} in the place of {pace:,} would take {needed:,.0f} PEs, "
        f"without room between kernels; {_available(needed, fabric)}. Fewer or narrower "
        f"layers make room; the largest kernels are {names}."
    )
    return room, *_memory(graph, placement, shapes, fabric)


def _available(needed: float, fabric: Fabric) -> str:
    """What kernels that need so many PEs may take of the fabric."""
    pes = fabric.processing_elements
    if needed > pes:
        return f"the fabric has {pes:,}"
    return (
        f"kernels get {MOST_OF_FABRIC * pes:,.0f} of the {pes:,} of the fabric, the rest goes to gaps, wires "
        "and I/O"
    )


def _memory(
    graph: KernelGraph, placement: Placement, shapes: Sequence[KernelShapes], fabric: Fabric
) -> tuple[str, ...]:
    """How much of the area memory alone needs, whatever the speed; nothing where that is little."""
    held = [
        placement.layouts[kernel.name].area
        for kernel, own in zip(graph.kernels, shapes, strict=True)
        if own.least_area(int(own.cycles[-1])) >= _FASTER * placement.layouts[kernel.name].area
    ]
    share = 100 * sum(held) / fabric.processing_elements
    if share < 1:
        return ()
    return (
        f"Memory, not speed, gives {len(held):,} of {len(graph.kernels):,} kernels their size, {share:.0f} % "
        "of the fabric: fewer parameters, fewer layers or shorter samples shrink them.",
    )


def _fewer_waiting(kernel: Kernel, placement: Placement, fabric: Fabric) -> str:
    """How many samples wait where most do, and how fast the kernels would be if all could be let in."""
    return (
        f"{kernel.name} holds activations of {kernel.samples(placement.fill):.1f} samples, "
        f"{kernel.stash_bytes(0):,} bytes each. With room for {kernel.samples(1):.1f} there, and for as many "
        f"more in all layers, it would be {_rate(placement.target_cycles, fabric)}. Fewer layers, shorter "
        "sequences, or attention that a mask keeps from looking ahead leave fewer of them waiting."
    )


def _dear(kernel: Kernel, layout: Configuration, shapes: KernelShapes) -> str:
    fastest = shapes.layouts[shapes.fastest]
    return (
        f"{kernel.name} could take {fastest.cycles:,} cycles on {fastest.area:,} PEs, in the place of "
        f"{layout.cycles:,} on {layout.area:,}, but a percent of speed, for all kernels that set the pace, "
        f"would cost more than {AREA_PER_SPEED:.0f} percent of area."
    )


def suggest_changes(kernel: Kernel, changes: Sequence[KernelChange]) -> str:
    """Which changes of a kernel itself make it faster, the best first."""
    helping = [change for change in changes[1:] if change.helps]
    if not helping:
        return (
            f"No smaller size of {kernel.name} makes it faster: leave it out, or join it with the operation "
            "before it."
        )
    best = sorted(helping, key=lambda change: change.cycles or 0)[:_LARGEST]
    listed = ", ".join(f"{change.change}: {change.cycles:,} cycles" for change in best)
    return f"What helps, each alone: {listed}."


def _work(kernel: Kernel, layout: Configuration, changes: Sequence[KernelChange]) -> str:
    """Why more PEs do not help a kernel that computes, and what would."""
    if kernel.loops is not None:
        return _slowest_loops(kernel, layout, changes)
    sizes, rows = kernel.parameters, max(1, kernel.parameters.get("rows", 1))
    cycles = f"{layout.compute_cycles:,} cycles"
    each = f"{cycles} a sample" if rows == 1 else f"{cycles} for {rows:,} rows of a sample"
    reason = FAMILIES[kernel.family].fastest.format_map(sizes)
    return f"At its fastest layout {kernel.name} takes {each}{reason} {suggest_changes(kernel, changes)}"


def _slowest_loops(kernel: Kernel, layout: Configuration, changes: Sequence[KernelChange]) -> str:
    """The loop nest of a generated kernel that takes most of its time, what holds it up, and what helps."""
    nest, share = find_slowest_nest(kernel, layout)
    head = (
        f"{100 * share:.0f} % of the time of {kernel.name}, a generated kernel, at its fastest layout goes to"
    )
    if nest.scanned:
        why = "every step of the scan needs the one before, so that more PEs do not help"
    elif nest.carried:
        why = "a running value goes from PE to PE, so that more PEs do not help"
    else:
        why = "its iterations are all spread, what remains is their start"
    return f"{head} `{nest.describe()}`: {why}. {suggest_changes(kernel, changes)}{_known(kernel)}"


def _known(kernel: Kernel) -> str:
    """What else there is for a generated kernel, which no cost function tells."""
    known = ", such as a layer norm, batch norm or softmax" if kernel.family == "reduction" else ""
    return f" An op that the kernel library knows{known} may be faster than loops."


def _stream(kernel: Kernel, layout: Configuration, changes: Sequence[KernelChange]) -> str:
    """What goes over the busiest link of a kernel, and what would shorten it."""
    lines = kernel.parameters.get("lines")
    cycles = layout.transmission_cycles
    if lines:
        elements = kernel.parameters["line_elements"]
        law = (
            f"The images of {kernel.name} go from kernel to kernel as {lines:,} lines of {elements:,} "
            f"elements, {cycles / lines:,.1f} cycles a line whatever the layout"
        )
    else:
        rows = max(1, kernel.parameters.get("rows", 1))
        each = f"{rows:,} rows, {cycles / rows:,.1f} cycles each" if rows > 1 else f"{cycles:,} cycles"
        law = (
            f"The busiest link of {kernel.name} takes {each}, for a sample, and no layout of it has a less "
            "busy one"
        )
    return (
        f"{law}. {suggest_changes(kernel, changes)}"
        if changes[1:]
        else f"{law}. Fewer or shorter rows are faster."
    )


def _next_limit(
    graph: KernelGraph, performance: Performance, shapes: Sequence[KernelShapes], fabric: Fabric
) -> str:
    """Which kernel could not keep up if those that bound the speed now were as fast as one likes."""
    pace = performance.overall.deltat_cycles
    others = [
        (int(own.cycles[0]), kernel)
        for kernel, own in zip(graph.kernels, shapes, strict=True)
        if int(own.cycles[0]) < pace
    ]
    if not others:
        return "All kernels are at the same pace."
    cycles, kernel = max(others, key=lambda found: found[0])
    return (
        f"After that {kernel.name} would set the pace, at its fastest: {_rate(cycles, fabric)}, if there is "
        "room for layouts of all kernels at that pace."
    )


def _rate(cycles: int, fabric: Fabric) -> str:
    return f"{fabric.clock_hz / cycles:,.1f} samples/s ({cycles:,} cycles)"
