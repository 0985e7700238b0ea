"""Copies of a model on one wafer: the rate of all together, and what their exchange of gradients costs.

Every copy computes an equal part of the samples of a step. Then its pipeline runs empty, the sums of all
copies are added, and every copy updates its own weights:

    step = samples of a copy * cycles per sample + emptying + exchange

Published rates of one copy have neither of the last two terms, so it has none here.
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
from cs_toolkit.execution_options import ReplicaChoice
from cs_toolkit.fabric import Fabric

_BATCH_NORMS = frozenset({FusedBatchNormOp.name, FusedBatchNormGradOp.name})


@dataclass(frozen=True)
class Exchange:
    """What comes after the samples of a step.

    Attributes:
        gradient_bytes: of one copy.
        emptying_cycles: from the last sample that enters a copy until all are through, beside its own.
        exchange_cycles: until every copy has the sums of all.
    """

    gradient_bytes: int = 0
    emptying_cycles: int = 0
    exchange_cycles: int = 0

    @property
    def cycles(self) -> int:
        """Both."""
        return self.emptying_cycles + self.exchange_cycles


@dataclass(frozen=True)
class Replicated:
    """Copies of a model on a wafer.

    Attributes:
        graph: of one copy.
        boxes: where the copies lie.
        one: estimates of a copy that shares the host links with the others, without the exchange.
        performance: of all copies; figures of kernels, and the cycles of the whole, are those of one.
        exchange: of a step; nothing in an evaluation, and with one copy.
    """

    graph: KernelGraph
    boxes: Boxes
    one: Figures
    performance: Performance
    exchange: Exchange

    @property
    def count(self) -> int:
        """How many copies."""
        return self.boxes.count

    @property
    def placement(self) -> Placement:
        """Of one copy."""
        return self.boxes.placement

    @property
    def samples(self) -> int:
        """Of a step in one copy."""
        return self.graph.batch_size

    @property
    def step_cycles(self) -> int:
        """From one step to the next."""
        return self.samples * self.one.deltat_cycles + self.exchange.cycles

    @property
    def samples_per_s(self) -> float:
        """Of all copies."""
        return self.performance.overall.samples_per_s


def replicated(graph: KernelGraph, fabric: Fabric, count: int) -> Replicated:
    """Places a model so many times.

    Args:
        graph: the model with the samples of a whole step.
        fabric: for all copies.
        count: copies.

    Raises:
        ReplicaError: the samples of a step cannot be shared equally, or so many copies do not fit.
        PlacementError: the model does not fit once.
    """
    _check_shares(graph.batch_size, count)
    found = _replicated(graph, fabric, count)
    if found is not None:
        return found
    raise _too_many(graph, fabric, count)


def best_replicated(graph: KernelGraph, fabric: Fabric) -> tuple[Replicated, tuple[Replicated, ...]]:
    """As many copies as have the best rate, and all numbers that were tried, ascending.

    Numbers are those that divide the batch. More copies than the host links can feed are not tried.

    Args:
        graph: the model with the samples of a whole step.
        fabric: for all copies.

    Raises:
        PlacementError: the model does not fit once.
    """
    most = _most_by_area(graph, fabric)
    tried = []
    for count in _divisors(graph.batch_size):
        if count > max(1, most):
            break
        found = _replicated(graph, fabric, count)
        if found is None:
            continue
        tried.append(found)
        if found.performance.bottleneck == INPUT:
            break
    return max(tried, key=lambda found: found.samples_per_s), tuple(tried)


def placed_replicas(
    graph: KernelGraph, fabric: Fabric, choice: ReplicaChoice
) -> tuple[Replicated, tuple[Replicated, ...]]:
    """What a user has asked for, and the numbers that were tried for it.

    Raises:
        ReplicaError: so many copies cannot be.
        PlacementError: the model does not fit once.
    """
    if choice == "auto":
        return best_replicated(graph, fabric)
    return replicated(graph, fabric, choice), ()


def _check_shares(batch_size: int, count: int) -> None:
    if batch_size % count:
        raise ReplicaError(
            f"a batch of {batch_size:,} samples cannot be shared equally by {count:,} replicas; choose a "
            f"batch size that {count:,} divides, or another num_replicas"
        )


def _too_many(graph: KernelGraph, fabric: Fabric, count: int) -> ReplicaError:
    """The error for copies that do not fit, with the largest number that does."""
    needed = shortage(graph.kernels, fabric).needed_pes
    fewer = [number for number in _divisors(graph.batch_size) if number < count]
    most = next(number for number in reversed(fewer) if _replicated(graph, fabric, number) is not None)
    return ReplicaError(
        f"{count:,} replicas of the model do not fit the wafer: one takes at least {needed:,} PEs, and of "
        f"the {fabric.processing_elements:,} of {fabric.name} each would have "
        f"{fabric.processing_elements // count:,}; the largest number that fits and divides the batch of "
        f"{graph.batch_size:,} is {most:,}: choose num_replicas={most}, or 'auto'"
    )


def _most_by_area(graph: KernelGraph, fabric: Fabric) -> int:
    """Copies for which the area suffices, at their smallest and without room between kernels."""
    return fabric.processing_elements // shortage(graph.kernels, fabric).needed_pes


def _divisors(number: int) -> list[int]:
    return [divisor for divisor in range(1, number + 1) if number % divisor == 0]


def _replicated(graph: KernelGraph, fabric: Fabric, count: int) -> Replicated | None:
    """The copies in the grid with the best rate; None where so many do not fit.

    Raises:
        PlacementError: one copy does not fit.
    """
    if count == 1:
        return _estimated(graph, Boxes(place(graph, fabric), 1, 1, fabric.width, fabric.height), fabric)
    if count > _most_by_area(graph, fabric):
        place(graph, fabric)  # where not even one fits, that is the error
        return None
    part = graph.of_replica(count)
    found = [_estimated(part, boxes, fabric) for boxes in replica_grids(part, fabric, count)]
    return max(found, key=lambda copies: copies.samples_per_s, default=None)


def _estimated(part: KernelGraph, boxes: Boxes, fabric: Fabric) -> Replicated:
    performance = estimate(part, boxes.placement, fabric, boxes.count)
    after = exchange(part, boxes, performance.overall.deltat_cycles, fabric)
    overall = _of_all(performance.overall, boxes.count, part.batch_size, after, fabric)
    return Replicated(part, boxes, performance.overall, replace(performance, overall=overall), after)


def _of_all(one: Figures, count: int, samples: int, after: Exchange, fabric: Fabric) -> Figures:
    """Figures of all copies; cycles stay those of one."""
    streaming = samples * one.deltat_cycles
    share = streaming / (streaming + after.cycles)
    active = count * one.active_pes
    return replace(
        one,
        samples_per_s=count * share * one.samples_per_s,
        compute_samples_per_s=count * one.compute_samples_per_s,
        transmission_samples_per_s=count * one.transmission_samples_per_s,
        active_pes=active,
        active_pes_percent=100 * active / fabric.processing_elements,
        compute_utilization_percent=share * one.compute_utilization_percent,
    )


def exchange(part: KernelGraph, boxes: Boxes, pace_cycles: int, fabric: Fabric) -> Exchange:
    """Cost of the exchange of a step.

    A PE holds sums of its own part of the weights, and the PE at the same place of every other copy holds
    those of the same part. Along each dimension of the grid they go from copy to copy to the first one, which
    adds its own, and the result goes back on the other direction of the links, while the next words arrive.
    A link carries one wavelet a cycle, a 32-bit packet with 16 bits of data (`Fabric.data_bits_per_wavelet`;
    arXiv 2409.00287, section II-D), and a router passes it on in a cycle:

        cycles = max(words of the fullest line of PEs, words of the fullest PE * cycles to take, add and send
                 one) + 2 * (copies in the dimension - 1) * PEs of a box

    A line of PEs has one link to the next box for all its words. A batch norm needs the sums of all samples
    in its forward and in its backward pass; those are few words that go the same way, there and back.

    Nothing of that is hidden by compute here: the last gradients are there when the last sample has passed.

    Args:
        part: the model of one copy.
        boxes: where the copies lie.
        pace_cycles: from one sample to the next in a copy.
        fabric: for all copies.
    """
    total = sum(kernel.gradient_bytes for kernel in part.kernels)
    if boxes.count == 1 or total == 0:
        return Exchange()
    in_flight = max(kernel.samples(boxes.placement.fill) for kernel in part.kernels)
    way = 2 * ((boxes.columns - 1) * boxes.width + (boxes.rows - 1) * boxes.height)
    norms = sum(op in _BATCH_NORMS for kernel in part.kernels for op in kernel.ops)
    return Exchange(
        gradient_bytes=total,
        emptying_cycles=math.ceil((in_flight - 1) * pace_cycles),
        exchange_cycles=math.ceil(_wire_cycles(part, boxes, fabric)) + (1 + norms) * way,
    )


def _wire_cycles(part: KernelGraph, boxes: Boxes, fabric: Fabric) -> float:
    """Cycles in which the words of the gradients pass, in both dimensions one after the other."""
    rects = boxes.placement.rects
    words = {kernel.name: 8 * kernel.gradient_bytes / fabric.data_bits_per_wavelet for kernel in part.kernels}
    held = [(words[kernel.name], rects[kernel.name]) for kernel in part.kernels if kernel.gradient_bytes]
    adding = 2 * coefficient("stream") + coefficient("simple")
    fullest = adding * max(count / rect.area for count, rect in held)
    lines = []
    if boxes.columns > 1:
        lines.append(_fullest_line((rect.y, rect.height, count) for count, rect in held))
    if boxes.rows > 1:
        lines.append(_fullest_line((rect.x, rect.width, count) for count, rect in held))
    return sum(max(line, fullest) for line in lines)


def _fullest_line(spans: Iterable[tuple[int, int, float]]) -> float:
    """The most words on a line of PEs, of words that are spread evenly over (first, lines)."""
    changes: dict[int, float] = {}
    for first, lines, words in spans:
        changes[first] = changes.get(first, 0.0) + words / lines
        changes[first + lines] = changes.get(first + lines, 0.0) - words / lines
    most = now = 0.0
    for at in sorted(changes):
        now += changes[at]
        most = max(most, now)
    return most
