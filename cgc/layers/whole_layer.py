"""A layer with both its parts as one module: what its kernels are found in."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import takewhile

from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import SSAValue

from cgc.cirh.base import LayerPath, layer_paths
from cgc.kernels.program import PartOfStep, elements
from cgc.layers.functions import function, part_module
from cgc.layers.graph import StepGraph
from cgc.layers.roles import Role
from cgc.layers.streamed import StreamedStep


@dataclass(frozen=True)
class WholeLayer:
    """Forward and backward part of a layer.

    Attributes:
        module: of both.
        part: which of its ops are of the forward part, and which results are gradients.
    """

    module: ModuleOp
    part: PartOfStep


def whole_layer(step: StreamedStep, index: int) -> WholeLayer | None:
    """A layer with both its parts; None where it computes nothing.

    Args:
        step: the step.
        index: of the layer.
    """
    graph, roles = step.cut.graph, step.cut.roles
    layer = step.cut.layers[index]
    inside = frozenset((*layer.forward, *layer.backward))
    wanted = [
        value
        for op in sorted(inside)
        for value in graph.results[op]
        if value in graph.outputs or not inside.issuperset(graph.users.get(value, ()))
    ]
    if not wanted:
        return None
    part = function(graph, lambda op: op in inside or roles[op] is Role.REPEATED, wanted)
    forward = frozenset(position for position, op in enumerate(part.ops) if op in graph.forward)
    values = step.program.values
    module = part_module(part, graph, step.program.ops, values, step.program.function)
    gradients = {
        position: part.results.index(made)
        for position, weight in enumerate(part.arguments[: part.weights])
        if (made := _gradient(graph, weight, frozenset(part.results), values)) is not None
    }
    return WholeLayer(module, PartOfStep(step.program.batch_size, forward, gradients))


def _gradient(graph: StepGraph, weight: int, made: frozenset[int], values: Sequence[SSAValue]) -> int | None:
    """The value of a layer that the update of a weight begins with; of a tied one its share."""
    size = elements(values[weight])
    pending, seen = [graph.replacements.get(weight, weight)], set()
    while pending:
        value = pending.pop()
        if value in made:
            return value
        producer = graph.producer.get(value)
        if producer is None or producer in seen:
            continue
        seen.add(producer)
        pending += [operand for operand in graph.operands[producer] if elements(values[operand]) == size]
    return None


def layer_names(step: StreamedStep) -> tuple[str, ...]:
    """What layers are called in reports: the path that the forward ops share, else the first and the last."""
    paths = [_paths(step, index) for index in range(len(step.cut.layers))]
    shared = [".".join(_shared(found)) for found in paths]
    return tuple(
        name if name and shared.count(name) == 1 else _span(found) or f"layer {index + 1}"
        for index, (name, found) in enumerate(zip(shared, paths, strict=True))
    )


def _paths(step: StreamedStep, index: int) -> list[LayerPath]:
    roles, ops = step.cut.roles, step.program.ops
    forward = [ops[op] for op in step.cut.layers[index].forward if roles[op] is Role.FORWARD]
    return [path for path in layer_paths(forward) if path]


def _shared(paths: Sequence[LayerPath]) -> LayerPath:
    same = takewhile(lambda names: len(set(names)) == 1, zip(*paths, strict=False))
    return tuple(names[0] for names in same)


def _span(paths: Sequence[LayerPath]) -> str:
    ends = (".".join(path) for path in (*paths[:1], *paths[-1:]))
    return " to ".join(dict.fromkeys(ends))
