"""What the layers of a step need on the wafer: each class of equal layers is matched and placed once."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from math import prod

from xdsl.dialects.builtin import TensorType

from cgc.cirh.base import CirhOp
from cgc.errors import PlacementError
from cgc.kernels import Kernel, KernelGraph, match_kernels
from cgc.layers.streamed import StreamedStep, WholeLayer, layer_names, whole_layer
from cgc.layers.traffic import LayerTraffic, layer_traffic
from cgc.performance.layers import LayerCost
from cgc.placement.copies import Copies, place_copies
from cs_toolkit.fabric import Fabric


@dataclass(frozen=True)
class LayerPlan:
    """Layers of one kind on the wafer: equal layers share it.

    Attributes:
        number: of the kind, in the order in which the kinds come.
        graph: the kernels; None where nothing is computed.
        copies: where they lie.
        forward_cycles: of a sample in one copy.
        backward_cycles: the same of the backward part.
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
        """The kernel that takes the most cycles for a sample; None where nothing is computed."""
        if self.copies is None or self.graph is None:
            return None
        layouts = self.copies.placement.layouts
        return max(self.graph.kernels, key=lambda one: layouts[one.name].compute_cycles)


@dataclass(frozen=True)
class PlacedLayer:
    """A layer on the wafer.

    Attributes:
        name: for reports.
        plan: how it lies there.
    """

    name: str
    plan: LayerPlan


def placed_layers(step: StreamedStep, fabric: Fabric) -> tuple[PlacedLayer, ...]:
    """Places the layers of a step, in the order of the forward pass.

    Args:
        step: the step.
        fabric: the whole wafer.

    Raises:
        PlacementError: a layer does not fit on the wafer by itself.
    """
    plans: dict[Hashable, LayerPlan] = {}
    found = []
    traffic = layer_traffic(step.schedule)
    names = layer_names(step)
    for index, (calls, moved) in enumerate(zip(step.schedule.layers, traffic, strict=True)):
        name = names[index]
        if max(moved.weights, moved.backward_weights) > fabric.memory_bytes:
            raise _too_large(name, moved, whole_layer(step, index), fabric)
        kind = tuple(call and call.function for call in (calls.forward, calls.backward))
        if kind not in plans:
            plans[kind] = _placed(len(plans), name, whole_layer(step, index), fabric)
        found.append(PlacedLayer(name, plans[kind]))
    return tuple(found)


def layer_costs(
    layers: Sequence[PlacedLayer], step: StreamedStep, recomputed: frozenset[int]
) -> tuple[LayerCost, ...]:
    """What every layer costs in a step.

    Args:
        layers: of the step.
        step: the step.
        recomputed: layers whose backward part computes the forward part again.
    """
    costs = []
    for index, (layer, moved) in enumerate(zip(layers, layer_traffic(step.schedule), strict=True)):
        plan = layer.plan
        again = plan.forward_cycles if index in recomputed else 0.0
        costs.append(
            LayerCost(
                forward_cycles=plan.forward_cycles,
                backward_cycles=plan.backward_cycles + again,
                copies=plan.copies.count if plan.copies else 1,
                held_bytes=plan.copies.held_bytes if plan.copies else 0,
                traffic=moved,
            )
        )
    return tuple(costs)


def _too_large(name: str, traffic: LayerTraffic, layer: WholeLayer | None, fabric: Fabric) -> PlacementError:
    weights = max(traffic.weights, traffic.backward_weights)
    message = (
        f"layer {name} has {weights:,} bytes of weights, the {fabric.processing_elements:,} PEs of the "
        f"whole wafer ({fabric.name}) have {fabric.memory_bytes:,}; weight streaming holds a layer at a "
        "time: make the layer smaller, or use 16-bit parameters"
    )
    return PlacementError(message, kernel=name, source=None if layer is None else _largest_source(layer))


def _largest_source(layer: WholeLayer) -> str | None:
    """The user's line of the op with the largest operand."""
    ops = [op for op in layer.module.walk() if isinstance(op, CirhOp) and op.source is not None]
    return max(ops, key=_operand_elements).source if ops else None


def _operand_elements(op: CirhOp) -> int:
    shapes = [kind.get_shape() for kind in op.operand_types if isinstance(kind, TensorType)]
    return max(map(prod, shapes), default=0)


def _placed(number: int, name: str, layer: WholeLayer | None, fabric: Fabric) -> LayerPlan:
    if layer is None:
        return LayerPlan(number, None, None, 0.0, 0.0)
    graph = match_kernels(layer.module, layer.part)
    try:
        copies = place_copies(_without_stash(graph), fabric)
    except PlacementError as error:
        raise PlacementError(
            f"layer {name} does not fit on the whole wafer: {error}",
            error.shortage,
            error.kernel,
            error.source,
        ) from None
    share = _forward_share(graph, copies, layer)
    return LayerPlan(number, graph, copies, share * copies.cycles, (1 - share) * copies.cycles)


def _without_stash(graph: KernelGraph) -> KernelGraph:
    """The graph of a layer whose samples all pass forward before the first one passes backward.

    What waits in between lies in the memory that no layer takes, see `cgc.performance.layers`.
    """
    kernels = tuple(kernel.without_stash() for kernel in graph.kernels)
    return KernelGraph(kernels, graph.edges, graph.batch_size, graph.input_bytes_per_sample)


def _forward_share(graph: KernelGraph, copies: Copies, layer: WholeLayer) -> float:
    """The share of a sample's time that goes to the forward part: that of the busy cycles."""
    layouts = copies.placement.layouts
    busy = [layouts[kernel.name].busy_pe_cycles for kernel in graph.kernels]
    forward = sum(
        cycles * _forward_passes(kernel, layer) for cycles, kernel in zip(busy, graph.kernels, strict=True)
    )
    return forward / sum(busy) if sum(busy) else 1.0


def _forward_passes(kernel: Kernel, layer: WholeLayer) -> float:
    """The share of a kernel's passes that are of the forward part."""
    members, forward = set(kernel.op_indices), layer.part.forward
    if members <= forward:
        return 1.0
    if not members & forward:
        return 0.0
    return 1 / max(2, kernel.parameters.get("passes", 2))
