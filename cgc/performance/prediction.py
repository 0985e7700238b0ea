"""Predicted rates of a changed model, from the areas of its kernels and drafts of its floorplan.

A compile places every kernel; a prediction must not cost as much. Where the fabric has room, the areas of the
kernels determine the speed. Otherwise, and for replicas, whose exchange depends on positions, a draft of the
floorplan is made, without the search for short wires.
"""

from __future__ import annotations

import math
from dataclasses import replace

from cgc.kernels.coefficients import coefficient
from cgc.kernels.graph import KernelGraph
from cgc.performance.model import Performance, estimate
from cgc.performance.replicas import Replicated, estimate_grid
from cgc.placement.place import AreaFit, draft, fit_by_area
from cgc.placement.replicas import boxes_of, list_grids
from cgc.placement.shapes import MAX_FABRIC_SHARE, shortage
from cs_toolkit.fabric import Fabric

# The line of PEs with the most words of gradients has about twice the mean.
_FULLEST_LINE = 2.0

# Drafts as kernels times drafts: about the time of one draft of a large model.
_DRAFT_WORK = 30

# With this many samples a step in a copy, work that is done once a step takes little of its time: the layouts
# of kernels, which take long to list, are nearly those of one copy.
_MANY_SAMPLES = 64

# Rate relative to that of now; a change that gives less is not worth a draft.
WORTH = 1.01

# The rate has passed its maximum if it is below this share of it.
_PAST_BEST = 0.97


def predict_interval(graph: KernelGraph, fabric: Fabric) -> int | None:
    """Predict the cycles between samples of one copy; None if the kernels do not fit."""
    fit = fit_by_area(graph, fabric)
    if fit is not None and not fit.full:
        return max(fit.interval, fabric.input_cycles(graph.input_bytes_per_sample))
    placement = None if fit is None else draft(graph, fabric, fit.fill)
    if placement is None:
        return None
    return estimate(graph, placement, fabric).overall.deltat_cycles


def predict_grid(
    graph: KernelGraph, fabric: Fabric, columns: int, rows: int, fill: float
) -> Replicated | None:
    """Predict the rate of several copies in a grid; None if they do not fit.

    Args:
        graph: graph of one copy, from `KernelGraph.of_replica`.
        fabric: the fabric that all copies share.
        columns: copies in x.
        rows: copies in y.
        fill: samples in flight relative to a full pipeline.
    """
    box = fabric.model_copy(update={"width": fabric.width // columns, "height": fabric.height // rows})
    placement = draft(graph, box, fill)
    return None if placement is None else estimate_grid(graph, boxes_of(placement, columns, rows), fabric)


def predict_replicas(graph: KernelGraph, fabric: Fabric, now: Performance) -> Replicated | None:
    """Predict the fastest number of copies of a model; None if several are not faster.

    Numbers and grids are compared by areas, as `choose_replicas` compares their floorplans; drafts are made
    of the best ones only.

    Args:
        graph: kernels of the model, with the samples of a whole step.
        fabric: the fabric that all copies share.
        now: estimates of one copy.
    """
    target = WORTH * now.overall.samples_per_s
    max_count = fabric.processing_elements // shortage(graph.kernels, fabric).needed_pes
    found: list[tuple[float, int, int, float]] = []
    best = now.overall.samples_per_s
    for count in range(2, min(max_count, graph.batch_size) + 1):
        if graph.batch_size % count:
            continue
        samples, grids = graph.batch_size // count, list_grids(fabric, count)
        if not grids:
            break
        size = {"width": fabric.width // grids[0][0], "height": fabric.height // grids[0][1]}
        replica = replace(graph, batch_size=samples) if samples >= _MANY_SAMPLES else graph.of_replica(count)
        fit = fit_by_area(replica, fabric.model_copy(update=size))
        if fit is None:
            break
        rates = [(_approximate_rate(replica, fabric, fit, *grid), *grid, fit.fill) for grid in grids]
        found += rates
        rate = max(one[0] for one in rates)
        if rate < _PAST_BEST * best:
            break
        best = max(best, rate)
    drafts = max(1, _DRAFT_WORK // len(graph.kernels))
    ranked = [one for one in sorted(found, key=lambda one: -one[0]) if one[0] > target][:drafts]
    predicted = [
        predict_grid(graph.of_replica(columns * rows), fabric, columns, rows, fill)
        for _, columns, rows, fill in ranked
    ]
    faster = [copies for copies in predicted if copies is not None and copies.samples_per_s > target]
    return max(faster, key=lambda copies: copies.samples_per_s, default=None)


def _approximate_rate(graph: KernelGraph, fabric: Fabric, fit: AreaFit, columns: int, rows: int) -> float:
    """Return the samples per second of copies in a grid, with gradients spread evenly over a copy's box."""
    count, samples = columns * rows, graph.batch_size
    interval = max(fit.interval, fabric.input_cycles(count * graph.input_bytes_per_sample))
    exchange = 0.0
    gradients = {kernel.name: kernel.gradient_bytes for kernel in graph.kernels if kernel.gradient_bytes}
    if gradients:
        width, height = fabric.width / columns, fabric.height / rows
        area = sum(fit.areas.values()) / MAX_FABRIC_SHARE
        scale = math.sqrt(min(1.0, area / (width * height)))
        width, height = scale * width, scale * height
        words = {name: 8 * size / fabric.data_bits_per_wavelet for name, size in gradients.items()}
        adding = 2 * coefficient("stream") + coefficient("simple")
        fullest = adding * max(count / fit.areas[name] for name, count in words.items())
        for copies, lines, extent in ((columns, height, width), (rows, width, height)):
            if copies > 1:
                exchange += max(_FULLEST_LINE * sum(words.values()) / lines, fullest)
                exchange += 2 * (copies - 1) * extent
        exchange += (max(kernel.samples(fit.fill) for kernel in graph.kernels) - 1) * interval
    return fabric.clock_hz * count * samples / (samples * interval + exchange)
