"""Time on the wafer of a placed kernel graph, in the terms of a compile report."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from cgc.kernels.configurations import Configuration
from cgc.kernels.families import configurations
from cgc.kernels.graph import Kernel, KernelGraph
from cgc.placement.model import Placement
from cs_toolkit.fabric import Fabric

INPUT = "host input"
"""Name of the bottleneck where the Ethernet links are slower than every kernel."""

MEMORY = "memory"
"""Limit of a pipeline in which samples wait until there is room for their activations."""

_AT_THE_PACE = 0.998


@dataclass(frozen=True)
class Figures:
    """Estimates of one kernel, or of the whole pipeline.

    Attributes:
        compute_cycles: cycles per sample of the busiest PE.
        transmission_cycles: cycles per sample of the busiest link; of the pipeline cycles from the first to
            the last word of a sample on the slowest stream, the host's included.
        samples_per_s: what both allow: clock / deltat_cycles.
        compute_samples_per_s: clock / compute_cycles.
        transmission_samples_per_s: clock / transmission_cycles.
        active_pes: PEs of the rectangle, adapters, fans and dead area included.
        active_pes_percent: share of the fabric, 0 to 100.
        compute_utilization_percent: share of the time at the speed of the pipeline in which these PEs run
            kernel code, 0 to 100; of the pipeline the mean over all active PEs.
        deltat_cycles: cycles from one sample to the next: the larger of compute and transmission.
    """

    compute_cycles: int
    transmission_cycles: int
    samples_per_s: float
    compute_samples_per_s: float
    transmission_samples_per_s: float
    active_pes: int
    active_pes_percent: float
    compute_utilization_percent: float
    deltat_cycles: int


@dataclass(frozen=True)
class Performance:
    """Estimates of a placed graph.

    Attributes:
        overall: of the pipeline.
        kernels: by name, in the order of the graph.
        bottleneck: the kernel that sets deltat_cycles, or `INPUT`.
        limit: what limits it, "compute", "transmission" or `MEMORY`.
    """

    overall: Figures
    kernels: Mapping[str, Figures]
    bottleneck: str
    limit: str


def estimate(graph: KernelGraph, placement: Placement, fabric: Fabric, replicas: int = 1) -> Performance:
    """Estimates the speed of a placed graph; one sample leaves the pipeline every `deltat_cycles`.

    The slowest kernel sets the pace, or the host links where the samples arrive more slowly than that. Where
    fewer samples are in flight than the kernels could take, all of it waits: the overall cycles are those
    from one sample to the next.

    Args:
        graph: the kernels.
        placement: of the kernels.
        fabric: what they are placed on.
        replicas: copies of the graph on the fabric, which share the host links; the estimate is of one.
    """
    layouts = {kernel.name: placement.layouts[kernel.name] for kernel in graph.kernels}
    waiting = placement.interval_cycles if placement.fill < 1 else 0
    compute = max(waiting, *(layout.compute_cycles for layout in layouts.values()))
    input_cycles = fabric.input_cycles(replicas * graph.input_bytes_per_sample)
    streams = [_stream_cycles(kernel, layouts[kernel.name]) for kernel in graph.kernels]
    transmission = max(waiting, input_cycles, *streams)
    pace = max(compute, transmission)
    active = sum(layout.area for layout in layouts.values())
    busy = sum(layout.busy_pe_cycles for layout in layouts.values())
    bottleneck = _fullest(graph, layouts) if pace == waiting else _bottleneck(graph, layouts, pace)
    return Performance(
        overall=_figures(compute, transmission, active, busy, pace, fabric),
        kernels={name: _of_kernel(layout, pace, fabric) for name, layout in layouts.items()},
        bottleneck=bottleneck,
        limit=MEMORY if pace == waiting else _limit_of(layouts.get(bottleneck)),
    )


def _limit_of(slowest: Configuration | None) -> str:
    """What limits the slowest kernel; None for the host input."""
    computes = slowest is not None and slowest.compute_cycles == slowest.cycles
    return "compute" if computes else "transmission"


def _stream_cycles(kernel: Kernel, layout: Configuration) -> int:
    """Cycles from the first to the last word of a sample on the streams out of a kernel.

    A sample of one row goes out at once. The rows of a sequence or of an image go out as they are made: the
    last one when the others have been computed. In published reports of sequence models the overall
    transmission is within 2.2 % of the pace for that reason, and no kernel's own links are as busy.
    """
    rows = kernel.parameters.get("rows", 1)
    paced = (layout.compute_cycles * (rows - 1) + layout.transmission_cycles) // rows
    return max(layout.transmission_cycles, paced)


def _bottleneck(graph: KernelGraph, layouts: Mapping[str, Configuration], pace: int) -> str:
    """Of the kernels at the pace the one that no rectangle makes faster, else the largest one.

    A kernel that cannot be faster counts from just below the pace on: the others take what it leaves them.
    """
    slowest = [kernel for kernel in graph.kernels if layouts[kernel.name].cycles == pace]
    if not slowest:
        return INPUT
    fixed = [
        kernel
        for kernel in graph.kernels
        if (cycles := layouts[kernel.name].cycles) >= _AT_THE_PACE * pace
        and int(configurations(kernel).cycles.min()) == cycles
    ]
    return max(fixed or slowest, key=lambda kernel: layouts[kernel.name].area).name


def _fullest(graph: KernelGraph, layouts: Mapping[str, Configuration]) -> str:
    """The kernel that holds the most activations, which no more samples can be let in for."""
    return max(
        graph.kernels, key=lambda kernel: (kernel.stash_bytes(1), layouts[kernel.name].memory_per_pe_bytes)
    ).name


def _of_kernel(layout: Configuration, pace: int, fabric: Fabric) -> Figures:
    return _figures(
        layout.compute_cycles, layout.transmission_cycles, layout.area, layout.busy_pe_cycles, pace, fabric
    )


def _figures(
    compute: int, transmission: int, active_pes: int, busy_pe_cycles: float, pace: int, fabric: Fabric
) -> Figures:
    deltat = max(compute, transmission)
    return Figures(
        compute_cycles=compute,
        transmission_cycles=transmission,
        samples_per_s=fabric.clock_hz / deltat,
        compute_samples_per_s=fabric.clock_hz / compute,
        transmission_samples_per_s=fabric.clock_hz / transmission,
        active_pes=active_pes,
        active_pes_percent=100 * active_pes / fabric.processing_elements,
        compute_utilization_percent=min(100.0, 100 * busy_pe_cycles / (active_pes * pace)),
        deltat_cycles=deltat,
    )
