"""Step time with weight streaming: while a layer computes, the weights of the next one are prefetched.

    pass = fetch_1 + sum(max(compute_l + latency, fetch_{l+1}, gradients_{l-1}))

A batch whose activations exceed the memory of the wafer is split into micro-batches, and the weights are
streamed again for each of them.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import prod

from xdsl.dialects.builtin import TensorType

from cgc.cirh.base import CirhOp
from cgc.errors import PlacementError
from cgc.kernels import Kernel, KernelGraph, match_kernels
from cgc.layers.streamed import StreamedStep, WholeLayer, layer_names, whole_layer
from cgc.layers.traffic import LayerTraffic, layer_traffic
from cgc.manifest import Bound
from cgc.placement.replicas import Copies, place_copies
from cs_toolkit.fabric import Fabric

# Latency of one part of a layer, in seconds. Rates measured on one CS-2 (arXiv 2409.00287, tables IV and V;
# BERT, 2.7 and 13 billion parameters) agree within 25 % with 4.5 ms per layer, forward and backward part
# together, and 1.9e15 FLOP/s. FC-MNIST with small batches agrees as well.
PART_LATENCY_S = 4.5e-3 / 2

# Bandwidth of weight updates in MemoryX: 22 weight servers, as in published logs, with the memory of an
# EPYC 7713 (eight channels DDR4-3200), the processor of Andromeda's servers. The efficiency of a server was
# not published.
UPDATE_BYTES_PER_S = 22 * 204.8e9

# Micro-batches to try above the minimum number: copies of a layer may share smaller ones more equally.
_MAX_EXTRA_MICRO_BATCHES = 8


@dataclass(frozen=True)
class LayerCost:
    """The resources that a layer needs.

    Attributes:
        forward_cycles: cycles per sample of the forward part in one copy of the layer.
        backward_cycles: cycles per sample of the backward part, 0 without one.
        copies: copies of the layer on the wafer, which share the samples.
        held_bytes: memory of the kernels.
        traffic: bytes that are streamed to and from the wafer.
    """

    forward_cycles: float
    backward_cycles: float
    copies: int
    held_bytes: int
    traffic: LayerTraffic


@dataclass(frozen=True)
class LayerTime:
    """Seconds of a layer in a step, over all micro-batches.

    Attributes:
        compute_s: compute of both parts.
        latency_s: latency of both parts.
        exposed_s: transfers that compute does not hide; for the first layer, its initial fetch as well.
    """

    compute_s: float
    latency_s: float
    exposed_s: float


@dataclass(frozen=True)
class StreamedPerformance:
    """Estimates of a step with weight streaming.

    Attributes:
        layers: times of the layers in the order of the forward pass.
        samples_per_micro_batch: samples that pass through the layers together.
        micro_batches: micro-batches of a step.
        activation_bytes: peak memory of activations, of the whole batch, or of a micro-batch if the step is
            split.
        activation_room_bytes: memory available for activations.
        parts: seconds of a step by their cause; their sum is `step_s`.
    """

    layers: tuple[LayerTime, ...]
    samples_per_micro_batch: int
    micro_batches: int
    activation_bytes: int
    activation_room_bytes: int
    parts: dict[Bound, float]

    @property
    def fits_unsplit(self) -> bool:
        """True if the batch is split although the wafer has room for all of its activations."""
        total_bytes = self.micro_batches * self.activation_bytes
        return self.micro_batches > 1 and total_bytes <= self.activation_room_bytes

    @property
    def step_s(self) -> float:
        """Seconds of a step."""
        return sum(self.parts.values())

    @property
    def bound_by(self) -> Bound:
        """The cause of the largest part of a step."""
        return max(self.parts, key=lambda part: self.parts[part])


@dataclass(frozen=True)
class _Pass:
    """One part of a layer on the wafer, for one micro-batch."""

    layer: int
    compute_s: float
    latency_s: float
    fetch_s: float
    out_s: float

    @property
    def busy_s(self) -> float:
        return self.compute_s + self.latency_s


def estimate_streamed_step(
    layers: Sequence[LayerCost],
    batch_size: int,
    peak_bytes: int,
    room: int,
    *,
    joined_update: bool,
    fabric: Fabric,
    micro_batches: int = 1,
) -> StreamedPerformance:
    """Estimate the time of a step with weight streaming.

    Args:
        layers: costs of the layers in the order of the forward pass.
        batch_size: samples of the step.
        peak_bytes: peak bytes of activations, of the whole batch or of a micro-batch.
        room: bytes available for activations, from `activation_room`.
        joined_update: True if no weight is updated before all gradients have arrived, as with a global norm.
        fabric: the whole wafer.
        micro_batches: number that the step is split into; if 1, the number that memory needs is chosen.
    """
    if micro_batches > 1:
        memory = (peak_bytes, room)
        return _estimate_split(
            layers, batch_size, micro_batches, memory, joined_update=joined_update, fabric=fabric
        )
    min_count = 1
    if peak_bytes > room:
        min_count = math.ceil(batch_size / max(1, math.floor(batch_size * room / peak_bytes)))
    counts = (
        range(min_count, min(batch_size, min_count + _MAX_EXTRA_MICRO_BATCHES) + 1) if min_count > 1 else (1,)
    )
    found = (
        _estimate_split(
            layers, batch_size, count, (peak_bytes, room), joined_update=joined_update, fabric=fabric
        )
        for count in counts
    )
    return min(found, key=lambda performance: performance.step_s)


def _estimate_split(
    layers: Sequence[LayerCost],
    batch_size: int,
    count: int,
    memory: tuple[int, int],
    *,
    joined_update: bool,
    fabric: Fabric,
) -> StreamedPerformance:
    """Estimate a step of `count` micro-batches; `memory` is the peak and the room of activation bytes."""
    micro_batch = math.ceil(batch_size / count)
    passes = _list_passes(layers, micro_batch, fabric)
    # A pass overlaps with the weights of the next pass and with the gradients of the previous one.
    prefetches = [pass_.fetch_s for pass_ in passes[1:]] + [0.0]
    gradients = [0.0] + [pass_.out_s for pass_ in passes[:-1]]
    exposed = [
        max(0.0, max(fetch, out) - pass_.busy_s)
        for pass_, fetch, out in zip(passes, prefetches, gradients, strict=True)
    ]
    first_fetch = passes[0].fetch_s
    compute, latency, waits = ([0.0] * len(layers) for _ in range(3))
    waits[0] = first_fetch
    for pass_, wait in zip(passes, exposed, strict=True):
        compute[pass_.layer] += count * pass_.compute_s
        latency[pass_.layer] += count * pass_.latency_s
        waits[pass_.layer] += count * wait
    once = sum(pass_.latency_s for pass_ in passes) + sum(exposed)
    parts: dict[Bound, float] = {
        "compute": sum(compute),
        "latency": sum(pass_.latency_s for pass_ in passes),
        "weight bandwidth": sum(exposed) + first_fetch,
        "activation memory": (count - 1) * once,
        "update": _update_s(layers, passes, joined_update=joined_update),
    }
    return StreamedPerformance(
        tuple(map(LayerTime, compute, latency, waits)), micro_batch, count, *memory, parts
    )


def activation_room(layers: Sequence[LayerCost], fabric: Fabric) -> int:
    """Return the bytes that the largest layer and its prefetched weights leave for activations."""
    used = max(layer.held_bytes + layer.copies * layer.traffic.weights for layer in layers)
    return max(0, fabric.memory_bytes - used)


def _list_passes(layers: Sequence[LayerCost], samples: int, fabric: Fabric) -> list[_Pass]:
    """Return the parts of all layers in execution order; both parts of the last layer are one pass."""
    link = fabric.io_bytes_per_s

    def make_pass(index: int, cycles: float, latency_s: float, fetch_bytes: int, out_bytes: int) -> _Pass:
        samples_of_copy = math.ceil(samples / layers[index].copies)
        compute_s = samples_of_copy * cycles / fabric.clock_hz
        return _Pass(index, compute_s, latency_s, fetch_bytes / link, out_bytes / link)

    last = len(layers) - 1
    forward = [
        make_pass(index, layer.forward_cycles, PART_LATENCY_S, layer.traffic.weights, 0)
        for index, layer in enumerate(layers[:last])
    ]
    last_layer = layers[last]
    latency_s = PART_LATENCY_S * (2 if last_layer.backward_cycles else 1)
    cycles = last_layer.forward_cycles + last_layer.backward_cycles
    last_pass = make_pass(last, cycles, latency_s, last_layer.traffic.weights, last_layer.traffic.gradients)
    backward = [
        make_pass(
            index,
            layer.backward_cycles,
            PART_LATENCY_S,
            layer.traffic.backward_weights,
            layer.traffic.gradients,
        )
        for index, layer in reversed(list(enumerate(layers[:last])))
        if layer.backward_cycles
    ]
    return [*forward, last_pass, *backward]


def _update_s(layers: Sequence[LayerCost], passes: Sequence[_Pass], *, joined_update: bool) -> float:
    """Return the seconds of the update that the backward and the next forward pass do not hide."""
    seconds = [layer.traffic.update / UPDATE_BYTES_PER_S for layer in layers]
    if joined_update:
        forward = [pass_.busy_s for pass_ in passes[: len(layers)]]
        waits = (max(0.0, after - busy) for busy, (_, after) in zip(forward, pairwise(seconds), strict=False))
        return passes[-1].out_s + seconds[0] + sum(waits)
    done = now = 0.0
    for pass_ in passes:
        now += pass_.busy_s
        if pass_.out_s:
            done = max(done, now + pass_.out_s) + seconds[pass_.layer]
    return max(0.0, done - now)


@dataclass(frozen=True)
class LayerPlan:
    """The placement of a layer on the wafer, shared by identical layers.

    Attributes:
        number: index of the plan in order of first use.
        graph: kernels of the layer; None if nothing is computed.
        copies: placement of the copies; None if nothing is computed.
        forward_cycles: cycles per sample of the forward part in one copy.
        backward_cycles: cycles per sample of the backward part in one copy.
    """

    number: int
    graph: KernelGraph | None
    copies: Copies | None
    forward_cycles: float
    backward_cycles: float

    @property
    def active_pes(self) -> int:
        """PEs of all kernels."""
        return self.copies.active_pes if self.copies else 0

    @property
    def slowest_kernel(self) -> Kernel | None:
        """The kernel with the most cycles per sample; None if nothing is computed."""
        if self.copies is None or self.graph is None:
            return None
        layouts = self.copies.placement.layouts
        return max(self.graph.kernels, key=lambda kernel: layouts[kernel.name].compute_cycles)


@dataclass(frozen=True)
class PlacedLayer:
    """A layer on the wafer.

    Attributes:
        name: name in reports.
        plan: its placement.
    """

    name: str
    plan: LayerPlan


def place_layers(step: StreamedStep, fabric: Fabric) -> tuple[PlacedLayer, ...]:
    """Place each layer of a step on the wafer, in the order of the forward pass.

    Args:
        step: the step with weight streaming.
        fabric: the whole wafer.

    Raises:
        PlacementError: a layer does not fit on the wafer.
    """
    plans: dict[Hashable, LayerPlan] = {}
    found = []
    traffic = layer_traffic(step.schedule)
    names = layer_names(step)
    for index, (calls, layer_bytes) in enumerate(zip(step.schedule.layers, traffic, strict=True)):
        name = names[index]
        if max(layer_bytes.weights, layer_bytes.backward_weights) > fabric.memory_bytes:
            raise _weights_too_large(name, layer_bytes, whole_layer(step, index), fabric)
        kind = tuple(call and call.function for call in (calls.forward, calls.backward))
        if kind not in plans:
            plans[kind] = _plan_layer(len(plans), name, whole_layer(step, index), fabric)
        found.append(PlacedLayer(name, plans[kind]))
    return tuple(found)


def layer_costs(
    layers: Sequence[PlacedLayer], step: StreamedStep, recomputed: frozenset[int]
) -> tuple[LayerCost, ...]:
    """Compute the cost of every layer of a step.

    Args:
        layers: placed layers of the step.
        step: the step with weight streaming.
        recomputed: indices of the layers whose backward part recomputes the forward part.
    """
    costs = []
    for index, (layer, layer_bytes) in enumerate(zip(layers, layer_traffic(step.schedule), strict=True)):
        plan = layer.plan
        recompute_cycles = plan.forward_cycles if index in recomputed else 0.0
        costs.append(
            LayerCost(
                forward_cycles=plan.forward_cycles,
                backward_cycles=plan.backward_cycles + recompute_cycles,
                copies=plan.copies.count if plan.copies else 1,
                held_bytes=plan.copies.held_bytes if plan.copies else 0,
                traffic=layer_bytes,
            )
        )
    return tuple(costs)


def _weights_too_large(
    name: str, traffic: LayerTraffic, layer: WholeLayer | None, fabric: Fabric
) -> PlacementError:
    weights = max(traffic.weights, traffic.backward_weights)
    message = (
        f"layer {name} has {weights:,} bytes of weights, the {fabric.processing_elements:,} PEs of the "
        f"whole wafer ({fabric.name}) have {fabric.memory_bytes:,}; weight streaming holds a layer at a "
        "time: make the layer smaller, or use 16-bit parameters"
    )
    return PlacementError(message, kernel=name, source=None if layer is None else _largest_source(layer))


def _largest_source(layer: WholeLayer) -> str | None:
    """Return the user's source line of the op with the largest operand."""
    ops = [op for op in layer.module.walk() if isinstance(op, CirhOp) and op.source is not None]
    return max(ops, key=_operand_elements).source if ops else None


def _operand_elements(op: CirhOp) -> int:
    shapes = [kind.get_shape() for kind in op.operand_types if isinstance(kind, TensorType)]
    return max(map(prod, shapes), default=0)


def _plan_layer(number: int, name: str, layer: WholeLayer | None, fabric: Fabric) -> LayerPlan:
    if layer is None:
        return LayerPlan(number, None, None, 0.0, 0.0)
    graph = match_kernels(layer.module, layer.part)
    try:
        # All samples pass forward before the first one passes backward, so the activations wait in the memory
        # that no layer takes (`activation_room`).
        kernels = tuple(kernel.without_stash() for kernel in graph.kernels)
        stashless = KernelGraph(kernels, graph.edges, graph.batch_size, graph.input_bytes_per_sample)
        copies = place_copies(stashless, fabric)
    except PlacementError as error:
        raise PlacementError(
            f"layer {name} does not fit on the whole wafer: {error}",
            error.shortage,
            error.kernel,
            error.source,
        ) from None
    share = _forward_share(graph, copies, layer)
    return LayerPlan(number, graph, copies, share * copies.cycles, (1 - share) * copies.cycles)


def _forward_share(graph: KernelGraph, copies: Copies, layer: WholeLayer) -> float:
    """Return the share of the forward part in the time of a sample, by busy cycles."""
    layouts = copies.placement.layouts
    busy = [layouts[kernel.name].busy_pe_cycles for kernel in graph.kernels]
    forward = sum(
        cycles * _forward_pass_share(kernel, layer)
        for cycles, kernel in zip(busy, graph.kernels, strict=True)
    )
    return forward / sum(busy) if sum(busy) else 1.0


def _forward_pass_share(kernel: Kernel, layer: WholeLayer) -> float:
    """Return the share of a kernel's passes that belong to the forward part."""
    members, forward = set(kernel.op_indices), layer.part.forward
    if members <= forward:
        return 1.0
    if not members & forward:
        return 0.0
    return 1 / max(2, kernel.parameters.get("passes", 2))
