"""Replicas of a model on one wafer: their total throughput, and the cost of the gradient all-reduce.

Every replica computes an equal share of the samples of a step. Then its pipeline drains, the gradients of all
replicas are summed, and every replica updates its copy of the weights:

    step = samples of a replica * cycles per sample + drain + all-reduce

The last two terms are zero for a single replica, as in published rates.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace

from cgc.cirh.normalization import FusedBatchNormGradOp, FusedBatchNormOp
from cgc.errors import ReplicaError
from cgc.kernels.coefficients import coefficient
from cgc.kernels.graph import KernelGraph
from cgc.performance.model import INPUT, Figures, Performance, estimate
from cgc.placement.model import Boxes, Placement
from cgc.placement.place import place
from cgc.placement.replicas import replica_grids
from cgc.placement.shapes import shortage
from cs_toolkit.execution_options import ReplicaChoice, replica_error
from cs_toolkit.fabric import Fabric

_BATCH_NORMS = frozenset({FusedBatchNormOp.name, FusedBatchNormGradOp.name})


@dataclass(frozen=True)
class Exchange:
    """The end of a step, after its samples: pipeline drain and gradient all-reduce.

    Attributes:
        gradient_bytes: bytes of the gradients of one replica.
        emptying_cycles: cycles to drain the pipeline after the last sample's own interval.
        exchange_cycles: cycles of the all-reduce.
    """

    gradient_bytes: int = 0
    emptying_cycles: int = 0
    exchange_cycles: int = 0

    @property
    def cycles(self) -> int:
        """Cycles of drain and all-reduce together."""
        return self.emptying_cycles + self.exchange_cycles


@dataclass(frozen=True)
class Replicated:
    """Replicas of a model on a wafer.

    Attributes:
        graph: kernels of one replica.
        boxes: placement of the replicas.
        per_replica: estimates of one replica, without the exchange; the host links are shared by all.
        performance: estimates of all replicas together; cycles and figures of kernels are those of one.
        exchange: cost of the exchange per step; zero for evaluation and for a single replica.
    """

    graph: KernelGraph
    boxes: Boxes
    per_replica: Figures
    performance: Performance
    exchange: Exchange

    @property
    def count(self) -> int:
        """Number of replicas."""
        return self.boxes.count

    @property
    def placement(self) -> Placement:
        """Placement of one replica."""
        return self.boxes.placement

    @property
    def samples(self) -> int:
        """Samples per step of one replica."""
        return self.graph.batch_size

    @property
    def step_cycles(self) -> int:
        """Cycles between two steps."""
        return self.samples * self.per_replica.deltat_cycles + self.exchange.cycles

    @property
    def samples_per_s(self) -> float:
        """Throughput of all replicas together."""
        return self.performance.overall.samples_per_s


def replicate(graph: KernelGraph, fabric: Fabric, count: int) -> Replicated:
    """Place `count` replicas of a model.

    Args:
        graph: kernels of the model, with the samples of a whole step.
        fabric: the fabric that all replicas share.
        count: number of replicas.

    Raises:
        ReplicaError: the replicas cannot share the samples of a step equally, or do not fit.
        PlacementError: not even one replica fits.
    """
    error = replica_error(graph.batch_size, count)
    if error is not None:
        raise ReplicaError(error)
    found = _place_best_grid(graph, fabric, count)
    if found is not None:
        return found
    raise _too_many_error(graph, fabric, count)


def choose_replicas(graph: KernelGraph, fabric: Fabric) -> tuple[Replicated, tuple[Replicated, ...]]:
    """Choose the number of replicas with the highest throughput, among the divisors of the batch size.

    Args:
        graph: kernels of the model, with the samples of a whole step.
        fabric: the fabric that all replicas share.

    Returns:
        The fastest replicas, and all that were tried, by ascending number.

    Raises:
        PlacementError: not even one replica fits.
    """
    max_count = _max_by_area(graph, fabric)
    tried = []
    for count in _divisors(graph.batch_size):
        if count > max(1, max_count):
            break
        found = _place_best_grid(graph, fabric, count)
        if found is None:
            continue
        tried.append(found)
        if found.performance.bottleneck == INPUT:
            break  # the host links cannot feed more replicas
    return max(tried, key=lambda found: found.samples_per_s), tuple(tried)


def select_replicas(
    graph: KernelGraph, fabric: Fabric, choice: ReplicaChoice
) -> tuple[Replicated, tuple[Replicated, ...]]:
    """Place the number of replicas that the user chose, or the fastest number.

    Returns:
        The replicas, and those tried for an automatic choice.

    Raises:
        ReplicaError: the chosen number of replicas is not possible.
        PlacementError: not even one replica fits.
    """
    if choice == "auto":
        return choose_replicas(graph, fabric)
    return replicate(graph, fabric, choice), ()


def _too_many_error(graph: KernelGraph, fabric: Fabric, count: int) -> ReplicaError:
    """Return the error for replicas that do not fit, with the largest number that does."""
    needed = shortage(graph.kernels, fabric).needed_pes
    fewer = [number for number in _divisors(graph.batch_size) if number < count]
    largest = next(
        number for number in reversed(fewer) if _place_best_grid(graph, fabric, number) is not None
    )
    return ReplicaError(
        f"{count:,} replicas of the model do not fit the wafer: one takes at least {needed:,} PEs, and of "
        f"the {fabric.processing_elements:,} of {fabric.name} each would have "
        f"{fabric.processing_elements // count:,}; the largest number that fits and divides the batch of "
        f"{graph.batch_size:,} is {largest:,}: choose {largest} replicas, or 'auto'"
    )


def _max_by_area(graph: KernelGraph, fabric: Fabric) -> int:
    """Return an upper bound of the number of replicas, from the smallest areas of their kernels."""
    return fabric.processing_elements // shortage(graph.kernels, fabric).needed_pes


def _divisors(number: int) -> list[int]:
    return [divisor for divisor in range(1, number + 1) if number % divisor == 0]


def _place_best_grid(graph: KernelGraph, fabric: Fabric, count: int) -> Replicated | None:
    """Place replicas in the grid with the highest throughput; None if `count` replicas do not fit.

    Raises:
        PlacementError: not even one replica fits.
    """
    if count == 1:
        return estimate_grid(graph, Boxes(place(graph, fabric), 1, 1, fabric.width, fabric.height), fabric)
    if count > _max_by_area(graph, fabric):
        place(graph, fabric)  # raises the error for a model of which not even one replica fits
        return None
    replica = graph.of_replica(count)
    found = [estimate_grid(replica, boxes, fabric) for boxes in replica_grids(replica, fabric, count)]
    return max(found, key=lambda copies: copies.samples_per_s, default=None)


def estimate_grid(graph: KernelGraph, boxes: Boxes, fabric: Fabric) -> Replicated:
    """Estimate the throughput of placed replicas.

    Args:
        graph: kernels of one replica.
        boxes: placement of the replicas.
        fabric: the fabric that all replicas share.
    """
    performance = estimate(graph, boxes.placement, fabric, boxes.count)
    exchange_cost = exchange(graph, boxes, performance.overall.deltat_cycles, fabric)
    overall = _sum_figures(performance.overall, boxes.count, graph.batch_size, exchange_cost, fabric)
    return Replicated(graph, boxes, performance.overall, replace(performance, overall=overall), exchange_cost)


def _sum_figures(
    figures: Figures, count: int, samples: int, exchange_cost: Exchange, fabric: Fabric
) -> Figures:
    """Return the figures of all replicas together, with the cycles of one."""
    streaming = samples * figures.deltat_cycles
    share = streaming / (streaming + exchange_cost.cycles)
    active = count * figures.active_pes
    return replace(
        figures,
        samples_per_s=count * share * figures.samples_per_s,
        compute_samples_per_s=count * figures.compute_samples_per_s,
        transmission_samples_per_s=count * figures.transmission_samples_per_s,
        active_pes=active,
        active_pes_percent=100 * active / fabric.processing_elements,
        compute_utilization_percent=share * figures.compute_utilization_percent,
    )


def exchange(graph: KernelGraph, boxes: Boxes, interval_cycles: int, fabric: Fabric) -> Exchange:
    """Estimate the cost of the gradient all-reduce of a step.

    Each PE holds the gradients of its part of the weights, as does the PE at the same position of every other
    replica. Along each dimension of the grid, gradients are summed from replica to replica toward the first
    one. The result returns in the opposite direction of the links while more words arrive. A link carries
    one wavelet per cycle, a 32-bit packet with 16 bits of data (`Fabric.data_bits_per_wavelet`;
    arXiv 2409.00287, section II-D), and a router forwards it in one cycle:

        cycles = max(words of the fullest line of PEs, words of the fullest PE * cycles to receive, add and
                 send one) + 2 * (replicas in the dimension - 1) * PEs of a box

    A line of PEs has one link to the next box for all its words. A batch norm also needs the sums of all
    samples in its forward and in its backward pass: few words, which take the same round trip.

    Args:
        graph: kernels of one replica.
        boxes: placement of the replicas.
        interval_cycles: cycles between two samples of a replica.
        fabric: the fabric that all replicas share.
    """
    # Compute hides none of the cost: the last gradients exist only after the last sample.
    total = sum(kernel.gradient_bytes for kernel in graph.kernels)
    if boxes.count == 1 or total == 0:
        return Exchange()
    in_flight = max(kernel.samples(boxes.placement.fill) for kernel in graph.kernels)
    round_trip = 2 * ((boxes.columns - 1) * boxes.width + (boxes.rows - 1) * boxes.height)
    norms = sum(op in _BATCH_NORMS for kernel in graph.kernels for op in kernel.ops)
    return Exchange(
        gradient_bytes=total,
        emptying_cycles=math.ceil((in_flight - 1) * interval_cycles),
        exchange_cycles=math.ceil(_wire_cycles(graph, boxes, fabric)) + (1 + norms) * round_trip,
    )


def _wire_cycles(graph: KernelGraph, boxes: Boxes, fabric: Fabric) -> float:
    """Return the cycles to transfer the words of the gradients in both dimensions, sequentially."""
    rects = boxes.placement.rects
    words = {
        kernel.name: 8 * kernel.gradient_bytes / fabric.data_bits_per_wavelet for kernel in graph.kernels
    }
    held = [(words[kernel.name], rects[kernel.name]) for kernel in graph.kernels if kernel.gradient_bytes]
    adding = 2 * coefficient("stream") + coefficient("simple")
    fullest = adding * max(count / rect.area for count, rect in held)
    lines = []
    if boxes.columns > 1:
        lines.append(_fullest_line((rect.y, rect.height, count) for count, rect in held))
    if boxes.rows > 1:
        lines.append(_fullest_line((rect.x, rect.width, count) for count, rect in held))
    return sum(max(line, fullest) for line in lines)


def _fullest_line(spans: Iterable[tuple[int, int, float]]) -> float:
    """Return the words on the fullest line of PEs; `spans` are (first line, number of lines, words)."""
    changes: dict[int, float] = {}
    for first, lines, words in spans:
        changes[first] = changes.get(first, 0.0) + words / lines
        changes[first + lines] = changes.get(first + lines, 0.0) - words / lines
    max_words = current = 0.0
    for line in sorted(changes):
        current += changes[line]
        max_words = max(max_words, current)
    return max_words
