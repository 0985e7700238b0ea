"""Suggestions to make a step faster: changes with their predicted rates, the best first."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from cgc.errors import PlacementError
from cgc.kernels.graph import Kernel
from cgc.performance.layers import LayerCost, PlacedLayer
from cgc.performance.prediction import WORTH, predict_grid, predict_interval, predict_replicas
from cgc.performance.replicas import Replicated
from cgc.placement.place import fit_by_area
from cgc.placement.shapes import (
    AREA_PER_SPEED,
    MAX_FABRIC_SHARE,
    GraphShapes,
    KernelShapes,
    areas,
    economical_target,
)
from cgc.report.limit import Limit, Reason
from cgc.report.what_if import Estimate, SlowestKernel, change_sizes
from cs_toolkit.fabric import Fabric
from cs_toolkit.step import Precision

Lever = Literal["replicas", "precision", "batch", "shape", "execution", "micro_batches", "input"]

FRONT_ENDS = ("estimator", "cstorch")

# Below this share of the fabric, replicas come first: they change neither the program nor its numbers.
_ROOM_PERCENT = 50.0

_HALF_PRECISION: Precision = "cbfloat16"


@dataclass(frozen=True)
class Suggestion:
    """A change by itself, with its effect on the whole step.

    Attributes:
        lever: kind of the change.
        change: description.
        samples_per_s: predicted rate after it.
        times: the same relative to the rate now.
        option: name and value of the option that makes it; None if it is a change of the program.
        program: where to make it in the program; empty with an option.
    """

    lever: Lever
    change: str
    samples_per_s: float
    times: float
    option: tuple[str, int | str] | None = None
    program: str = ""

    def describe_how(self, front_end: str = "") -> str:
        """Return how to make the change, by the names of a front end: "estimator", "cstorch" or another."""
        if self.option is None:
            return self.program
        name, value = self.option
        given = f'"{value}"' if isinstance(value, str) else str(value)
        if front_end == "cstorch" and name == "precision":
            return f"cstorch.amp.set_half_dtype({given})"
        call = {"estimator": "CSRunConfig", "cstorch": "cstorch.configure"}.get(front_end)
        return f"{name}={given}" if call is None else f"{call}({name}={given})"


@dataclass(frozen=True)
class _Pipeline:
    """A placed pipeline of one or several copies, in the box of each."""

    copies: Replicated
    limit: Limit
    shapes: Sequence[KernelShapes]
    room: Fabric
    fabric: Fabric
    precision: Precision

    @property
    def interval(self) -> int:
        return self.copies.per_replica.deltat_cycles

    def rate_at(self, interval: int, batch: int = 1) -> float:
        """Return the rate with another interval between samples, or `batch` times as many samples."""
        exchange, samples = self.copies.exchange, batch * self.copies.samples
        once = exchange.emptying_cycles * interval / self.interval + exchange.exchange_cycles
        return self.fabric.clock_hz * self.copies.count * samples / (samples * interval + once)


def suggest_for_pipeline(
    copies: Replicated,
    limit: Limit,
    shapes: Sequence[KernelShapes],
    room: Fabric,
    fabric: Fabric,
    precision: Precision,
) -> tuple[Suggestion, ...]:
    """Return the changes that make a pipeline faster.

    Args:
        copies: the placed copies.
        limit: of the speed of one copy.
        shapes: layouts of each kernel of a copy in its box.
        room: the box of a copy.
        fabric: the fabric of all copies.
        precision: of activations and their gradients.
    """
    pipeline = _Pipeline(copies, limit, shapes, room, fabric, precision)
    found = (
        *_suggest_replicas(pipeline),
        *_suggest_precision(pipeline),
        *_suggest_batch(pipeline),
        *_suggest_input(pipeline),
        *_suggest_shapes(pipeline),
    )
    roomy = copies.performance.overall.active_pes_percent < _ROOM_PERCENT
    return _rank(found, copies.samples_per_s, first="replicas" if roomy else None)


def _rank(found: Iterable[Suggestion], now: float, first: Lever | None = None) -> tuple[Suggestion, ...]:
    """Return the suggestions that help, the best first, with their effect relative to the rate now."""
    helping = [
        replace(one, times=one.samples_per_s / now) for one in found if one.samples_per_s > WORTH * now
    ]
    return tuple(sorted(helping, key=lambda one: (one.lever != first, -one.samples_per_s, one.change)))


def _suggest_replicas(pipeline: _Pipeline) -> Iterator[Suggestion]:
    copies = pipeline.copies
    if copies.count > 1 or pipeline.limit.reason is Reason.HOST_INPUT:
        return
    found = predict_replicas(copies.graph, pipeline.fabric, copies.performance)
    if found is not None:
        change = f"{found.count:,} copies of the model on the wafer"
        yield Suggestion("replicas", change, found.samples_per_s, 1.0, ("num_replicas", found.count))


def _suggest_precision(pipeline: _Pipeline) -> Iterator[Suggestion]:
    copies = pipeline.copies
    halved = copies.graph.in_16_bits()
    if pipeline.precision != "float32" or halved == copies.graph:
        return
    rate: float | None = None
    if copies.count == 1:
        interval = predict_interval(halved, pipeline.room)
        rate = None if interval is None else pipeline.rate_at(interval)
    elif (fit := fit_by_area(halved, pipeline.room)) is not None:
        boxes = copies.boxes
        found = predict_grid(halved, pipeline.fabric, boxes.columns, boxes.rows, fit.fill)
        if found is not None:
            # In a small full box it is chance how densely kernels of slightly other sizes pack.
            rate = (
                min(found.samples_per_s, pipeline.rate_at(fit.interval)) if fit.full else found.samples_per_s
            )
    if rate is not None:
        yield Suggestion("precision", _IN_16_BITS, rate, 1.0, ("precision", _HALF_PRECISION))


_IN_16_BITS = "activations and their gradients in 16 bits"


def _suggest_batch(pipeline: _Pipeline) -> Iterator[Suggestion]:
    """Suggest a batch twice as large where work that is done once a step sets the pace."""
    copies = pipeline.copies
    interval = pipeline.interval
    if pipeline.limit.reason is Reason.FASTEST_LAYOUT:
        kernel = copies.graph.by_name[copies.performance.bottleneck]
        if _fewest_cycles(kernel.with_batch(2), pipeline) < interval:
            fit = fit_by_area(copies.graph.with_batch(2), pipeline.room)
            if fit is not None and not fit.full:
                interval = fit.interval
    rate = pipeline.rate_at(interval, batch=2)
    yield _larger_batch(2 * copies.count * copies.samples, rate)


def _larger_batch(samples: int, rate: float) -> Suggestion:
    change, where = f"a batch twice as large ({samples:,})", "batch size of the input function"
    return Suggestion("batch", change, rate, 1.0, program=where)


def _suggest_input(pipeline: _Pipeline) -> Iterator[Suggestion]:
    copies = pipeline.copies
    if pipeline.limit.reason is not Reason.HOST_INPUT:
        return
    slowest = max(layout.cycles for layout in copies.placement.layouts.values())
    size = copies.graph.input_bytes_per_sample
    smaller = int(size * slowest / pipeline.interval)
    change = f"samples of {smaller:,} bytes instead of {size:,}"
    where = "input function: send 8-bit or 16-bit numbers, and convert them in the model"
    yield Suggestion("input", change, pipeline.rate_at(slowest), 1.0, program=where)


def _suggest_shapes(pipeline: _Pipeline) -> Iterator[Suggestion]:
    """Suggest smaller sizes of the kernel that bounds the speed, and of all that are equal to it."""
    if pipeline.limit.reason not in (Reason.FASTEST_LAYOUT, Reason.AREA_TOO_DEAR):
        return
    graph = pipeline.copies.graph
    kernel = graph.by_name[pipeline.copies.performance.bottleneck]
    index = graph.kernels.index(kernel)
    equal = {
        position
        for position, other in enumerate(graph.kernels)
        if (other.family, other.parameters, other.loops) == (kernel.family, kernel.parameters, kernel.loops)
    }
    others = [own for position, own in enumerate(pipeline.shapes) if position not in equal]
    # The kernels that are not changed bound the speed next.
    next_cycles = max((int(own.cycles[0]) for own in others), default=1)
    next_cycles = max(
        next_cycles, pipeline.room.input_cycles(pipeline.copies.count * graph.input_bytes_per_sample)
    )
    if next_cycles * WORTH > pipeline.interval:
        return
    where = f"{kernel.name}{f' at {kernel.source}' if kernel.source else ''}"
    where += f" and {len(equal) - 1:,} like it" if len(equal) > 1 else ""
    for change, changed in change_sizes(kernel, pipeline.shapes[index]):
        own = _shapes_of(changed, pipeline)
        if own is None:
            continue
        kernels = tuple(changed if at in equal else other for at, other in enumerate(graph.kernels))
        kernels = tuple(replace(one, name=old.name) for one, old in zip(kernels, graph.kernels, strict=True))
        target = max(next_cycles, int(own.cycles[0]))
        if target * WORTH > pipeline.interval:
            continue
        target = max(target, economical_target(replace(graph, kernels=kernels), AREA_PER_SPEED))
        after = [own if at in equal else other for at, other in enumerate(pipeline.shapes)]
        if areas(after, np.array([target]))[0] <= MAX_FABRIC_SHARE * pipeline.room.processing_elements:
            yield Suggestion("shape", change, pipeline.rate_at(target), 1.0, program=where)


def _shapes_of(kernel: Kernel, pipeline: _Pipeline) -> KernelShapes | None:
    """Return the layouts of a changed kernel in the box; None if none fits."""
    try:
        shapes = GraphShapes([kernel], pipeline.room).shapes_at(pipeline.copies.placement.fill)
    except PlacementError:
        return None
    return None if shapes is None else shapes[0]


def _fewest_cycles(kernel: Kernel, pipeline: _Pipeline) -> float:
    shapes = _shapes_of(kernel, pipeline)
    return float("inf") if shapes is None else float(shapes.cycles[0])


def suggest_for_layers(
    layers: Sequence[PlacedLayer],
    costs: Sequence[LayerCost],
    slowest: SlowestKernel | None,
    estimate: Estimate,
    batch_size: int,
    precision: Precision,
    fabric: Fabric,
    pipelined_rate: float | None = None,
) -> tuple[Suggestion, ...]:
    """Return the changes that make a step with streamed weights faster.

    Args:
        layers: the placed layers.
        costs: of the layers.
        slowest: the slowest kernel of the layer that computes the longest.
        estimate: estimates a changed step.
        batch_size: samples of the step.
        precision: of activations and their gradients.
        fabric: the whole wafer.
        pipelined_rate: predicted rate with all layers on the wafer at once; None if unknown.
    """
    now = estimate(1, 1.0, costs)
    found = [_larger_batch(2 * batch_size, 2 * batch_size / estimate(2, 1.0, costs).step_s)]
    if pipelined_rate is not None:
        change, option = "all layers on the wafer at once", ("execution", "pipelined")
        found.append(Suggestion("execution", change, pipelined_rate, 1.0, option))
    if now.fits_unsplit:
        whole = estimate(1, 1 / now.micro_batches, costs)
        change = "the whole batch at once, not in micro-batches"
        option = ("micro_batch_size", "auto")
        found.append(Suggestion("micro_batches", change, batch_size / whole.step_s, 1.0, option))
    if precision == "float32":
        halved = estimate(1, 0.5, _halve(layers, costs, fabric))
        rate = batch_size / halved.step_s
        found.append(Suggestion("precision", _IN_16_BITS, rate, 1.0, ("precision", _HALF_PRECISION)))
    if slowest is not None:
        found += _suggest_layer_shapes(layers, costs, slowest, estimate, batch_size)
    return _rank(found, batch_size / now.step_s)


def _halve(
    layers: Sequence[PlacedLayer], costs: Sequence[LayerCost], fabric: Fabric
) -> tuple[LayerCost, ...]:
    """Return the costs of layers that compute in 16 bits, with as many copies."""
    shares: dict[int, float] = {}
    changed = []
    for layer, cost in zip(layers, costs, strict=True):
        plan = layer.plan
        if plan.number not in shares:
            shares[plan.number] = 1.0
            if plan.copies is not None and plan.graph is not None:
                size = {"width": plan.copies.width, "height": plan.copies.height}
                box = fabric.model_copy(update=size)
                kernels = tuple(kernel.in_16_bits().without_stash() for kernel in plan.graph.kernels)
                fit = fit_by_area(replace(plan.graph, kernels=kernels), box)
                if fit is not None:
                    shares[plan.number] = min(1.0, fit.interval / plan.copies.cycles)
        changed.append(_scale(cost, shares[plan.number]))
    return tuple(changed)


def _scale(cost: LayerCost, share: float) -> LayerCost:
    return replace(
        cost, forward_cycles=share * cost.forward_cycles, backward_cycles=share * cost.backward_cycles
    )


def _suggest_layer_shapes(
    layers: Sequence[PlacedLayer],
    costs: Sequence[LayerCost],
    slowest: SlowestKernel,
    estimate: Estimate,
    batch_size: int,
) -> Iterator[Suggestion]:
    plan = next(layer.plan for layer in layers if layer.name == slowest.layer)
    assert plan.copies is not None
    layouts = plan.copies.placement.layouts
    others = [layout.compute_cycles for name, layout in layouts.items() if name != slowest.kernel.name]
    equal = sum(layer.plan is plan for layer in layers)
    source = f" at {slowest.kernel.source}" if slowest.kernel.source else ""
    where = f"{slowest.kernel.name}{source}{f' in {equal:,} layers' if equal > 1 else ''}"
    for change in slowest.changes:
        if not change.is_size or change.cycles is None:
            continue
        share = max(change.cycles, *others, 1) / plan.copies.cycles
        scaled = [
            _scale(cost, share) if layer.plan is plan else cost
            for layer, cost in zip(layers, costs, strict=True)
        ]
        rate = batch_size / estimate(1, 1.0, scaled).step_s
        yield Suggestion("shape", change.change, rate, 1.0, program=where)
