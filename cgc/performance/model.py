"""Performance model of a placed kernel graph, in the terms of a compile report."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from cgc.kernels.configurations import Configuration
from cgc.kernels.families import configurations
from cgc.kernels.graph import Kernel, KernelGraph
from cgc.placement.model import Placement
from cs_toolkit.fabric import Fabric

INPUT = "host input"  # name of the bottleneck if the Ethernet links are slower than every kernel
MEMORY = "memory"  # limit of a pipeline in which samples wait for memory for their activations

# A kernel that cannot be faster is the bottleneck if it takes at least this share of the pipeline's cycles.
_BOTTLENECK_SHARE = 0.998


@dataclass(frozen=True)
class Figures:
    """Estimates of one kernel, or of the whole pipeline.

    Attributes:
        compute_cycles: cycles per sample of the busiest PE.
        transmission_cycles: cycles per sample of the busiest link; for the pipeline, cycles from the first to
            the last word of a sample on the slowest stream, including the host's.
        samples_per_s: clock / deltat_cycles.
        compute_samples_per_s: clock / compute_cycles.
        transmission_samples_per_s: clock / transmission_cycles.
        active_pes: PEs of the rectangle, including adapters, fans and dead area.
        active_pes_percent: share of the fabric, 0 to 100.
        compute_utilization_percent: share of the time in which these PEs run kernel code at the pipeline's
            speed, 0 to 100; for the pipeline, the mean over all active PEs.
        deltat_cycles: cycles between two samples: the larger of compute and transmission.
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
        overall: estimates of the pipeline.
        kernels: estimates of each kernel by name, in the order of the graph.
        bottleneck: name of the kernel that sets deltat_cycles, or `INPUT`.
        limit: limit of the bottleneck: "compute", "transmission" or `MEMORY`.
    """

    overall: Figures
    kernels: Mapping[str, Figures]
    bottleneck: str
    limit: str


def estimate(graph: KernelGraph, placement: Placement, fabric: Fabric, replicas: int = 1) -> Performance:
    """Estimate the speed of a placed graph; one sample leaves the pipeline every `deltat_cycles`.

    The slowest kernel sets the interval between samples, unless the host links are slower. If memory for
    activations limits the samples in flight, every stage waits, and this limit sets the interval.

    Args:
        graph: the kernels.
        placement: placement of the kernels.
        fabric: the fabric that they are placed on.
        replicas: copies of the graph that share the host links; the estimate is for one of them.
    """
    layouts = {kernel.name: placement.layouts[kernel.name] for kernel in graph.kernels}
    memory_interval = placement.interval_cycles if placement.fill < 1 else 0
    compute = max(memory_interval, *(layout.compute_cycles for layout in layouts.values()))
    input_cycles = fabric.input_cycles(replicas * graph.input_bytes_per_sample)
    streams = [_stream_cycles(kernel, layouts[kernel.name]) for kernel in graph.kernels]
    transmission = max(memory_interval, input_cycles, *streams)
    interval = max(compute, transmission)
    active = sum(layout.area for layout in layouts.values())
    busy = sum(layout.busy_pe_cycles for layout in layouts.values())
    bottleneck = (
        _find_fullest(graph, layouts)
        if interval == memory_interval
        else _find_bottleneck(graph, layouts, interval)
    )
    return Performance(
        overall=_figures(compute, transmission, active, busy, interval, fabric),
        kernels={
            name: _figures(
                layout.compute_cycles,
                layout.transmission_cycles,
                layout.area,
                layout.busy_pe_cycles,
                interval,
                fabric,
            )
            for name, layout in layouts.items()
        },
        bottleneck=bottleneck,
        limit=MEMORY if interval == memory_interval else _limit_of(layouts.get(bottleneck)),
    )


def _limit_of(slowest: Configuration | None) -> str:
    """Return the limit of the slowest kernel; None stands for the host input."""
    computes = slowest is not None and slowest.compute_cycles == slowest.cycles
    return "compute" if computes else "transmission"


def _stream_cycles(kernel: Kernel, layout: Configuration) -> int:
    """Return the cycles from the first to the last word of a sample on the output streams of a kernel."""
    # A sample of one row is sent in one burst. The rows of a sequence or an image are sent as they are
    # computed. This explains published reports of sequence models: the overall transmission is within 2.2 %
    # of the overall cycles, although no kernel's own links are as busy.
    rows = kernel.parameters.get("rows", 1)
    streaming = (layout.compute_cycles * (rows - 1) + layout.transmission_cycles) // rows
    return max(layout.transmission_cycles, streaming)


def _find_bottleneck(graph: KernelGraph, layouts: Mapping[str, Configuration], interval: int) -> str:
    """Return the largest of the slowest kernels, preferably one that is not faster in any rectangle."""
    slowest = [kernel for kernel in graph.kernels if layouts[kernel.name].cycles == interval]
    if not slowest:
        return INPUT
    # Other kernels were sized to match a kernel that cannot be faster, and may be slightly slower.
    at_limit = [
        kernel
        for kernel in graph.kernels
        if (cycles := layouts[kernel.name].cycles) >= _BOTTLENECK_SHARE * interval
        and int(configurations(kernel).cycles.min()) == cycles
    ]
    return max(at_limit or slowest, key=lambda kernel: layouts[kernel.name].area).name


def _find_fullest(graph: KernelGraph, layouts: Mapping[str, Configuration]) -> str:
    """Return the kernel with the most activations, which limits the samples in flight."""
    return max(
        graph.kernels, key=lambda kernel: (kernel.stash_bytes(1), layouts[kernel.name].memory_per_pe_bytes)
    ).name


def _figures(
    compute: int, transmission: int, active_pes: int, busy_pe_cycles: float, interval: int, fabric: Fabric
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
        compute_utilization_percent=min(100.0, 100 * busy_pe_cycles / (active_pes * interval)),
        deltat_cycles=deltat,
    )
