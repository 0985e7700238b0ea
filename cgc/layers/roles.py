"""What each op of a step is for: what travels with weights, what the wafer computes, what MemoryX does."""

from __future__ import annotations

from enum import Enum, auto

from cgc.layers.graph import StepGraph
from cgc.layers.update_side import update_side


class Role(Enum):
    """Where an op is computed when weights stream."""

    REPEATED = auto()
    """In every layer that reads it: it depends on constants, on weights alone, or on the batch alone."""
    CONTROL = auto()
    """Once before a step: small values of schedules and scales."""
    FORWARD = auto()
    """In the forward part of a layer."""
    PENALTY = auto()
    """There as well: a small value of weights alone."""
    BACKWARD = auto()
    """In the backward part of a layer."""
    UPDATE = auto()
    """At MemoryX, when gradients have come."""


_BEFORE_LAYERS = (Role.REPEATED, Role.CONTROL)
_CONTROL, _WEIGHT, _DATA, _OPTIMIZER = 1, 2, 4, 8


def roles(graph: StepGraph) -> list[Role]:
    """The role of every op."""
    depends = dependencies(graph)
    if graph.totals:
        updated = graph.descendants(graph.totals)
    else:
        updated = update_side(graph, _fixed_updates(graph, depends))
    found: list[Role] = []
    for op in range(len(graph.operands)):
        is_early = all(found[producer] in _BEFORE_LAYERS for producer in graph.producers(op))
        found.append(_role(graph, op, depends, updated, is_early))
    return found


def dependencies(graph: StepGraph) -> list[int]:
    """For every op, on which kinds of arguments it depends, as bits."""
    of_value = {value: _argument_kind(graph, value) for value in (*graph.state, *graph.inputs)}
    of_value.update(dict.fromkeys(graph.whole_inputs, 0))
    if graph.number is not None:
        of_value[graph.number] = _DATA
    found = []
    for op, read in enumerate(graph.operands):
        kinds = 0
        for value in read:
            kinds |= of_value[value]
        of_value.update(dict.fromkeys(graph.results[op], kinds))
        found.append(kinds)
    return found


def _argument_kind(graph: StepGraph, value: int) -> int:
    if value in graph.inputs:
        return _DATA
    if graph.is_small(value):
        return _CONTROL
    return _OPTIMIZER if value in graph.optimizer_state else _WEIGHT


def _fixed_updates(graph: StepGraph, depends: list[int]) -> frozenset[int]:
    """Ops that MemoryX has to compute, because they depend on what never leaves it."""
    return frozenset(op for op, kinds in enumerate(depends) if kinds & _OPTIMIZER)


def _role(graph: StepGraph, op: int, depends: list[int], updated: frozenset[int], is_early: bool) -> Role:
    kinds, small = depends[op], graph.makes_small(op)
    if (op in updated and kinds not in (0, _CONTROL)) or kinds & _OPTIMIZER:
        return Role.UPDATE
    if kinds == 0:
        return Role.REPEATED
    if kinds == _CONTROL and small and is_early:
        return Role.CONTROL
    flows = bool(kinds & _DATA and kinds & (_WEIGHT | _CONTROL))
    if op not in graph.forward:
        return Role.BACKWARD if flows else Role.REPEATED
    if flows or kinds == _CONTROL:
        return Role.FORWARD
    return Role.PENALTY if small and not kinds & _DATA else Role.REPEATED
