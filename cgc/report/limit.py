"""The limit of the speed of a step, and the reasons for it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

import numpy as np

from cgc.kernels.configurations import Configuration
from cgc.kernels.families import FAMILIES
from cgc.kernels.graph import Kernel, KernelGraph
from cgc.performance.layers import StreamedPerformance
from cgc.performance.model import INPUT, MEMORY, Performance
from cgc.placement.model import Placement
from cgc.placement.shapes import AREA_PER_SPEED, MAX_FABRIC_SHARE, KernelShapes, areas, economical_target
from cgc.report.what_if import SlowestKernel, find_slowest_nest
from cs_toolkit.fabric import Fabric

_MAX_LISTED = 3  # kernels in a sentence
_FASTER = 0.9  # share of the present cycles that the sentence on a full wafer aims at


class Reason(Enum):
    """Why the pipeline is not faster."""

    # The Ethernet links deliver samples more slowly than every kernel takes them.
    HOST_INPUT = "host_input"
    # Samples wait until the wafer's memory has room for their activations.
    ACTIVATIONS = "activations"
    # Faster layouts of all kernels would pay, but together they do not fit on the fabric.
    WAFER_FULL = "wafer_full"
    # The slowest kernel has no faster layout that fits the fabric and the memory of its PEs.
    FASTEST_LAYOUT = "fastest_layout"
    # Faster layouts exist and would fit, but cost more area than they are worth to the placer.
    AREA_TOO_DEAR = "area_too_dear"


@dataclass(frozen=True)
class Limit:
    """The limit of the speed.

    Attributes:
        kind: "compute", "transmission", "area" or "memory".
        reason: the reason why the pipeline is not faster.
    """

    kind: str
    reason: Reason


def find_limit(
    graph: KernelGraph, placement: Placement, performance: Performance, shapes: Sequence[KernelShapes]
) -> Limit:
    """Find the limit of a placed graph's speed; `shapes` are the layouts of each kernel on the fabric."""
    if performance.bottleneck == INPUT:
        return Limit(performance.limit, Reason.HOST_INPUT)
    if performance.limit == MEMORY:
        return Limit(MEMORY, Reason.ACTIVATIONS)
    fastest = {kernel.name: int(own.cycles[0]) for kernel, own in zip(graph.kernels, shapes, strict=True)}
    # The placer takes the lowest target of cycles that pays and can be packed. So area is the limit where
    # its target is above both the one that pays and the fastest layout of every kernel.
    if placement.target_cycles > max(*fastest.values(), economical_target(graph, AREA_PER_SPEED)):
        return Limit("area", Reason.WAFER_FULL)
    is_fastest = fastest[performance.bottleneck] >= performance.kernels[performance.bottleneck].deltat_cycles
    return Limit(performance.limit, Reason.FASTEST_LAYOUT if is_fastest else Reason.AREA_TOO_DEAR)


def explain_limit(
    graph: KernelGraph,
    placement: Placement,
    performance: Performance,
    limit: Limit,
    shapes: Sequence[KernelShapes],
    fabric: Fabric,
) -> tuple[str, ...]:
    """Write sentences on the reasons of the limit and on the next limit.

    Args:
        graph: the kernels.
        placement: their placement.
        performance: estimates of the placed graph.
        limit: the limit of its speed.
        shapes: layouts of each kernel on the fabric.
        fabric: the PEs that the kernels are placed on.
    """
    match limit.reason:
        case Reason.HOST_INPUT:
            return (_explain_input(graph, placement, performance, fabric),)
        case Reason.WAFER_FULL:
            room = _explain_area_needed(graph, placement, performance, shapes, fabric)
            return (room, *_explain_memory(graph, placement, shapes, fabric))
        case Reason.ACTIVATIONS:
            kernel = graph.by_name[performance.bottleneck]
            waiting = _explain_waiting(kernel, placement, fabric)
            return (waiting, *_explain_memory(graph, placement, shapes, fabric))
        case Reason.AREA_TOO_DEAR:
            kernel = graph.by_name[performance.bottleneck]
            own = shapes[graph.kernels.index(kernel)]
            fastest = own.layouts[own.fastest]
            return (
                _explain_area(kernel, placement.layouts[kernel.name], fastest),
                _explain_compute(kernel, fastest),
            )
        case Reason.FASTEST_LAYOUT:
            kernel = graph.by_name[performance.bottleneck]
            explain = _explain_transmission if limit.kind == "transmission" else _explain_compute
            own_limit = explain(kernel, placement.layouts[kernel.name])
            return (own_limit, _describe_next_limit(graph, performance, shapes, fabric))


def explain_layers(slowest: SlowestKernel | None, performance: StreamedPerformance) -> tuple[str, ...]:
    """Write a sentence on the slowest kernel of a streamed step; nothing unless compute bounds the rate."""
    if slowest is None or performance.bound_by != "compute":
        return ()
    return (
        f"Kernel {slowest.kernel.name} sets the pace of layer {slowest.layer}, {slowest.cycles:,} cycles a "
        "sample in each copy of it.",
    )


def _explain_input(graph: KernelGraph, placement: Placement, performance: Performance, fabric: Fabric) -> str:
    slowest = max(graph.kernels, key=lambda kernel: placement.layouts[kernel.name].cycles)
    cycles = placement.layouts[slowest.name].cycles
    share = cycles / performance.overall.deltat_cycles
    return (
        f"Samples of {int(graph.input_bytes_per_sample * share):,} bytes, instead of "
        f"{graph.input_bytes_per_sample:,}, would arrive as fast as the slowest kernel, {slowest.name}, "
        f"takes them: {_rate(cycles, fabric)}. Send 8-bit pixels or 16-bit numbers and convert them in the "
        "model."
    )


def _explain_area_needed(
    graph: KernelGraph,
    placement: Placement,
    performance: Performance,
    shapes: Sequence[KernelShapes],
    fabric: Fabric,
) -> str:
    """Write the area that a higher speed would take, and name the largest kernels."""
    layouts, cycles = placement.layouts, performance.overall.deltat_cycles
    slowest = max(range(len(shapes)), key=lambda index: int(shapes[index].cycles[0]))
    least = int(shapes[slowest].cycles[0])
    target = max(int(_FASTER * cycles), least)
    limit = f", the least of {graph.kernels[slowest].name}," if target == least else ""
    needed, pes = float(areas(shapes, np.array([target]))[0]), fabric.processing_elements
    available = f"the fabric has {pes:,}"
    if needed <= pes:
        available = (
            f"kernels get {MAX_FABRIC_SHARE * pes:,.0f} of the {pes:,} of the fabric, the rest is for gaps, "
            "wires and I/O"
        )
    if needed <= MAX_FABRIC_SHARE * pes:
        available += "; no floorplan was found in which their rectangles pack"
    largest = sorted(layouts, key=lambda name: -layouts[name].area)[:_MAX_LISTED]
    names = ", ".join(f"{name} ({layouts[name].area:,} PEs)" for name in largest)
    return (
        f"{target:,} cycles{limit} instead of {cycles:,} would take {needed:,.0f} PEs, without room between "
        f"kernels; {available}. Fewer or narrower layers make room; the largest kernels are {names}."
    )


def _explain_memory(
    graph: KernelGraph, placement: Placement, shapes: Sequence[KernelShapes], fabric: Fabric
) -> tuple[str, ...]:
    """Write the share of the area that memory takes at any speed; nothing if it is below 1 %."""
    held = [
        placement.layouts[kernel.name].area
        for kernel, own in zip(graph.kernels, shapes, strict=True)
        if own.min_area(int(own.cycles[-1])) >= _FASTER * placement.layouts[kernel.name].area
    ]
    share = 100 * sum(held) / fabric.processing_elements
    if share < 1:
        return ()
    return (
        f"Memory, not speed, gives {len(held):,} of {len(graph.kernels):,} kernels their size, {share:.0f} % "
        "of the fabric: fewer parameters, fewer layers or shorter samples shrink them.",
    )


def _explain_waiting(kernel: Kernel, placement: Placement, fabric: Fabric) -> str:
    return (
        f"{kernel.name} holds activations of {kernel.samples(placement.fill):.1f} samples, "
        f"{kernel.stash_bytes(0):,} bytes each. With room for {kernel.samples(1):.1f} there, and for as many "
        f"more in all layers, it would be {_rate(placement.target_cycles, fabric)}. Fewer layers, shorter "
        "sequences, or attention with a causal mask leave fewer of them waiting."
    )


def _explain_area(kernel: Kernel, layout: Configuration, fastest: Configuration) -> str:
    return (
        f"{kernel.name} could take {fastest.cycles:,} cycles on {fastest.area:,} PEs, instead of "
        f"{layout.cycles:,} on {layout.area:,}, but a percent of speed, for all kernels that are as slow, "
        f"would cost more than {AREA_PER_SPEED:.0f} percent of area."
    )


def _explain_compute(kernel: Kernel, layout: Configuration) -> str:
    """Write why more PEs do not help a kernel that compute limits."""
    if kernel.loops is not None:
        return _explain_loops(kernel, layout)
    sizes, rows = kernel.parameters, max(1, kernel.parameters.get("rows", 1))
    cycles = f"{layout.compute_cycles:,} cycles"
    each = f"{cycles} a sample" if rows == 1 else f"{cycles} for {rows:,} rows of a sample"
    reason = FAMILIES[kernel.family].fastest.format_map(sizes)
    return f"At its fastest layout {kernel.name} takes {each}{reason}"


def _explain_loops(kernel: Kernel, layout: Configuration) -> str:
    """Write which loop nest takes most of a generated kernel's time, and why."""
    nest, share = find_slowest_nest(kernel, layout)
    if nest.scanned:
        why = "every step of the scan needs the previous one, so more PEs do not help"
    elif nest.carried:
        why = "a running value passes from PE to PE, so more PEs do not help"
    else:
        why = "its iterations are all spread, what remains is their start"
    known = ", such as a layer norm, batch norm or softmax" if kernel.family == "reduction" else ""
    return (
        f"{100 * share:.0f} % of the time of {kernel.name}, a generated kernel, at its fastest layout is "
        f"spent in `{nest.describe()}`: {why}. "
        f"An op that the kernel library knows{known} may be faster than loops."
    )


def _explain_transmission(kernel: Kernel, layout: Configuration) -> str:
    """Write the load of the busiest link of a kernel."""
    lines = kernel.parameters.get("lines")
    cycles = layout.transmission_cycles
    if lines:
        elements = kernel.parameters["line_elements"]
        load = (
            f"The images of {kernel.name} pass from kernel to kernel as {lines:,} lines of {elements:,} "
            f"elements, {cycles / lines:,.1f} cycles a line whatever the layout"
        )
    else:
        rows = max(1, kernel.parameters.get("rows", 1))
        each = f"{rows:,} rows, {cycles / rows:,.1f} cycles each" if rows > 1 else f"{cycles:,} cycles"
        load = (
            f"The busiest link of {kernel.name} takes {each}, for a sample, and no layout of it has a less "
            "busy one"
        )
    return f"{load}."


def _describe_next_limit(
    graph: KernelGraph, performance: Performance, shapes: Sequence[KernelShapes], fabric: Fabric
) -> str:
    """Name the kernel that would be the slowest if those that are now were arbitrarily fast."""
    faster = [
        (int(own.cycles[0]), kernel)
        for kernel, own in zip(graph.kernels, shapes, strict=True)
        if int(own.cycles[0]) < performance.overall.deltat_cycles
    ]
    if not faster:
        return "All kernels are equally fast."
    cycles, kernel = max(faster, key=lambda found: found[0])
    return (
        f"After that {kernel.name} would be the slowest, at its fastest: {_rate(cycles, fabric)}, if there "
        "is room for layouts of all kernels at that speed."
    )


def _rate(cycles: int, fabric: Fabric) -> str:
    return f"{fabric.clock_hz / cycles:,.1f} samples/s ({cycles:,} cycles)"
