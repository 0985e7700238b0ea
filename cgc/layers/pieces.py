"""Elementwise updates in pieces that fit a cache, whatever the shapes of their tensors.

A piece is read from memory once and written once, where a function of whole tensors reads and writes every
intermediate. One function serves all weights of an optimizer.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

from xdsl.dialects.builtin import ModuleOp
from xdsl.dialects.func import FuncOp, ReturnOp
from xdsl.ir import Block, SSAValue

from cgc.cirh.base import CirhOp
from cgc.cirh.shape import BroadcastInDimOp, ConstOp, ReshapeOp
from cgc.cirh.traits import Elements
from cgc.cirh.types import Tensor, element_count, tensor_of, tensor_type
from cgc.layers.functions import Function, extract_function, wrap_block
from cgc.layers.graph import StepGraph

# Elements of each tensor: a piece of AdamW takes 3.5 MB of cache; at half the size calls cost a tenth.
PIECE_ELEMENTS = 1 << 17

# Smaller updates are computed whole: a last piece takes as long as a full one.
MIN_ELEMENTS = 1 << 15

# Passing a tensor separately takes as long as this many of its elements.
TENSOR_OVERHEAD_ELEMENTS = 1 << 13


@dataclass(frozen=True)
class SweptUpdates:
    """Updates of equal form that one function computes piece by piece.

    Attributes:
        text: of the function's module.
        parts: for each tensor, the function that would compute it whole.
    """

    text: str
    parts: tuple[Function, ...]


def find_swept_updates(
    graph: StepGraph,
    values: Sequence[SSAValue],
    layers: Sequence[Sequence[int]],
    is_inside: Callable[[int], bool],
    text_of: Callable[[Function], str | None],
) -> tuple[tuple[SweptUpdates, ...], ...]:
    """Find the updates of each layer that are computed in pieces.

    Args:
        graph: the step.
        values: of the step.
        layers: of each layer, the new values of its state.
        is_inside: returns True for an op of the update.
        text_of: returns the text of a part's `build_piece_module`, if it has one.
    """
    layer_parts = [_group_states(graph, states, is_inside) for states in layers]
    users = Counter(value for parts in layer_parts for part in parts for value in part.arguments)
    # New value -> the state that it replaces, if it has no other use.
    new_values = Counter(graph.replacements.values())
    other_uses = set(graph.outputs) | graph.state
    replaced_by = {
        new: old for old, new in graph.replacements.items() if new_values[new] == 1 and new not in other_uses
    }

    def is_independent(part: Function) -> bool:
        """Return True if no other update reads the values that this one reads or replaces piece by piece."""
        read = [value for value in part.arguments if not graph.is_small(value)]
        old = [replaced_by.get(value) for value in part.results]
        others = [value for value in old if value not in read and users[value or 0]]
        return bool(read) and None not in old and not others and all(users[value] == 1 for value in read)

    found = []
    for parts in layer_parts:
        groups: dict[object, tuple[str, list[Function]]] = {}
        for part in filter(is_independent, parts):
            if (text := text_of(part)) is not None:
                small = tuple(value for value in part.arguments if graph.is_small(value))
                # Positions of the replaced states among the arguments.
                position = {value: index for index, value in enumerate(part.arguments)}
                old = tuple(position.get(replaced_by[value]) for value in part.results)
                groups.setdefault((text, small, old), (text, []))[1].append(part)
        swept = []
        for text, members in groups.values():
            sizes = (element_count(tensor_of(values[part.results[0]])) for part in members)
            if sum(size + TENSOR_OVERHEAD_ELEMENTS for size in sizes) >= MIN_ELEMENTS:
                swept.append(SweptUpdates(text, tuple(members)))
        found.append(tuple(swept))
    return tuple(found)


def build_piece_module(
    part: Function, graph: StepGraph, ops: Sequence[CirhOp], values: Sequence[SSAValue], like: FuncOp
) -> ModuleOp | None:
    """Return the module of a part for pieces: each large tensor has one dimension of `PIECE_ELEMENTS`.

    Returns:
        None if elements depend on elements at other positions.
    """
    counts = {
        element_count(tensor_of(values[value]))
        for op in part.ops
        for value in (*graph.results[op], *graph.operands[op])
        if not graph.is_small(value)
    }
    if len(counts) != 1:
        return None
    types = [tensor_of(values[value]) for value in part.arguments]
    block = Block(
        arg_types=[
            tensor if graph.is_small(value) else _piece_type(tensor)
            for value, tensor in zip(part.arguments, types, strict=True)
        ]
    )
    local: dict[int, SSAValue] = dict(zip(part.arguments, block.args, strict=True))
    for index in part.ops:
        results = _add_piece_op(ops[index], index, graph, local, block)
        if results is None:
            return None
        local.update(zip(graph.results[index], results, strict=True))
    terminator = ReturnOp(*(local[value] for value in part.results))
    block.add_op(terminator)
    return wrap_block(block, part.weights, terminator, like)


def _add_piece_op(
    op: CirhOp, index: int, graph: StepGraph, local: dict[int, SSAValue], block: Block
) -> Sequence[SSAValue] | None:
    """Add an op on pieces to the block and return its results; None if it mixes elements."""
    operands = [local[value] for value in graph.operands[index]]
    is_small = [graph.is_small(value) for value in (*graph.operands[index], *graph.results[index])]
    elements = op.TRAITS.elements
    if all(is_small):
        copy = type(op).create(
            operands=operands, result_types=[r.type for r in op.results], properties=dict(op.properties)
        )
    elif any(is_small[len(operands) :]):
        return None
    elif not isinstance(op, BroadcastInDimOp) and any(
        small and element_count(tensor_of(operand)) != 1
        for small, operand in zip(is_small, operands, strict=False)
    ):
        return None  # booleans of a vector may be small where its numbers are not
    elif isinstance(op, ConstOp):
        if (value := op.splat_value()) is None:
            return None
        # A constant of a large tensor is written as a broadcast, which is not folded.
        scalar = ConstOp.splat(value, tensor_type((), tensor_of(op.result).element_type))
        block.add_op(scalar)
        copy = BroadcastInDimOp(scalar, (PIECE_ELEMENTS,), ())
    elif isinstance(op, BroadcastInDimOp):
        if element_count(tensor_of(operands[0])) != 1:
            return None
        if tensor_of(operands[0]).get_shape():
            reshaped = ReshapeOp(operands[0], ())
            block.add_op(reshaped)
            operands = [reshaped.result]
        copy = BroadcastInDimOp(operands[0], (PIECE_ELEMENTS,), ())
    elif elements is Elements.KEPT:
        return operands
    elif elements in (Elements.POINTWISE, Elements.CONVERTED):
        types = [_piece_type(tensor_of(result)) for result in op.results]
        copy = type(op).create(operands=operands, result_types=types, properties=dict(op.properties))
    else:
        return None
    block.add_op(copy)
    return copy.results


def _group_states(
    graph: StepGraph, states: Iterable[int], is_inside: Callable[[int], bool]
) -> list[Function]:
    """Group new values by the large values that they share, each group with the function that computes it."""
    known: dict[int | None, tuple[Function, set[int]]] = {}
    groups: dict[int, tuple[set[int], list[int]]] = {}
    group_of: dict[int, int] = {}
    for number, state in enumerate(states):
        producer = graph.producer.get(state)  # one function computes all results of an op
        if producer is None or producer not in known:
            part = extract_function(graph, is_inside, [state])
            known[producer] = part, _large_tensors(part, graph)
        large, members = set(known[producer][1]), [state]
        for group in sorted({group_of[value] for value in large if value in group_of}):
            group_large, group_members = groups.pop(group)
            large |= group_large
            members = group_members + members
        groups[number] = large, members
        group_of.update(dict.fromkeys(large, number))
    functions = []
    for _, members in groups.values():
        first, *rest = (graph.producer.get(state) for state in members)
        if first is None or any(producer != first for producer in rest):
            functions.append(extract_function(graph, is_inside, members))
        else:
            functions.append(replace(known[first][0], results=tuple(members)))
    return functions


def _large_tensors(part: Function, graph: StepGraph) -> set[int]:
    """Return the large values of a part, except broadcast small values."""
    found = {value for value in part.arguments if not graph.is_small(value)}
    for op in part.ops:  # in order: operands come before their users
        if found.intersection(graph.operands[op]):
            found.update(value for value in graph.results[op] if not graph.is_small(value))
    return found


def _piece_type(tensor: Tensor) -> Tensor:
    return tensor_type((PIECE_ELEMENTS,), tensor.element_type)
