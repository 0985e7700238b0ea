"""Elementwise updates in pieces that fit a cache, whatever the shapes of their tensors.

A piece is read from memory once and written once, where a function of whole tensors reads and writes every
intermediate. One function serves all weights of an optimizer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

from xdsl.dialects.builtin import ModuleOp
from xdsl.dialects.func import FuncOp, ReturnOp
from xdsl.ir import Block, SSAValue

from cgc.cirh.base import CirhOp
from cgc.cirh.shape import BroadcastInDimOp, ConstOp, ReshapeOp
from cgc.cirh.traits import Elements
from cgc.cirh.types import Tensor, element_count, tensor_of, tensor_type
from cgc.layers.functions import Function, block_module, function
from cgc.layers.graph import StepGraph

# Elements of each tensor: a piece of AdamW takes 3.5 MB of cache; at half the size calls cost a tenth.
PIECE_ELEMENTS = 1 << 17

# Smaller updates are computed whole: a last piece takes as long as a full one. Passing a tensor separately
# takes as long as TENSOR_ELEMENTS of its elements.
LEAST_ELEMENTS, TENSOR_ELEMENTS = 1 << 15, 1 << 13


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
        text_of: returns the text of a part's `piece_module`, if it has one.
    """
    parts = [_parts(graph, states, is_inside) for states in layers]
    readers: dict[int, int] = {}
    for part in (part for found in parts for part in found):
        for value in part.arguments:
            readers[value] = readers.get(value, 0) + 1
    replaced = _replacements(graph)

    def is_independent(part: Function) -> bool:
        """Return True if no other update reads the values that this one reads or replaces piece by piece."""
        read = [value for value in part.arguments if not graph.is_small(value)]
        old = [replaced.get(value) for value in part.results]
        others = [value for value in old if value not in read and readers.get(value or 0)]
        return bool(read) and None not in old and not others and all(readers[value] == 1 for value in read)

    found = []
    for layer in parts:
        groups: dict[object, tuple[str, list[Function]]] = {}
        for part in filter(is_independent, layer):
            if (text := text_of(part)) is not None:
                small = tuple(value for value in part.arguments if graph.is_small(value))
                old = tuple(_place(replaced[value], part) for value in part.results)
                groups.setdefault((text, small, old), (text, []))[1].append(part)
        swept = (SweptUpdates(text, tuple(members)) for text, members in groups.values())
        found.append(tuple(s for s in swept if _elements(s, values) >= LEAST_ELEMENTS))
    return tuple(found)


def piece_module(
    part: Function, graph: StepGraph, ops: Sequence[CirhOp], values: Sequence[SSAValue], like: FuncOp
) -> ModuleOp | None:
    """Return the module of a part for pieces: each large tensor has one dimension of `PIECE_ELEMENTS`.

    Returns:
        None if elements depend on elements at other places.
    """
    counts = {
        element_count(tensor_of(values[value]))
        for op in part.ops
        for value in (*graph.results[op], *graph.operands[op])
        if not graph.is_small(value)
    }
    if len(counts) != 1:
        return None
    types = [_piece(value, values, graph) for value in part.arguments]
    block = Block(arg_types=types)
    local: dict[int, SSAValue] = dict(zip(part.arguments, block.args, strict=True))
    for index in part.ops:
        made = _flat_op(ops[index], index, graph, local, values, block)
        if made is None:
            return None
        local.update(zip(graph.results[index], made, strict=True))
    terminator = ReturnOp(*(local[value] for value in part.results))
    block.add_op(terminator)
    return block_module(block, part.weights, terminator, like)


def _flat_op(
    op: CirhOp,
    index: int,
    graph: StepGraph,
    local: dict[int, SSAValue],
    values: Sequence[SSAValue],
    block: Block,
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
        # As constants of large tensors are written, which are not folded.
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
        types = [_flat(tensor_of(result)) for result in op.results]
        copy = type(op).create(operands=operands, result_types=types, properties=dict(op.properties))
    else:
        return None
    block.add_op(copy)
    return copy.results


def _parts(graph: StepGraph, states: Iterable[int], is_inside: Callable[[int], bool]) -> list[Function]:
    """Group new values by the large values that they share, each group with the function that computes it."""
    known: dict[int | None, tuple[Function, set[int]]] = {}
    groups: dict[int, tuple[set[int], list[int]]] = {}
    group_of: dict[int, int] = {}
    for number, state in enumerate(states):
        made = graph.producer.get(state)  # with one value of an op come the others
        if made is None or made not in known:
            part = function(graph, is_inside, [state])
            known[made] = part, _tensors(part, graph)
        large, joined = set(known[made][1]), [state]
        for near in sorted({group_of[value] for value in large if value in group_of}):
            others, members = groups.pop(near)
            large |= others
            joined = members + joined
        groups[number] = large, joined
        group_of.update(dict.fromkeys(large, number))
    found = []
    for _, members in groups.values():
        first, *rest = (graph.producer.get(state) for state in members)
        if first is None or any(made != first for made in rest):
            found.append(function(graph, is_inside, members))
        else:
            found.append(replace(known[first][0], results=tuple(members)))
    return found


def _tensors(part: Function, graph: StepGraph) -> set[int]:
    """Return the large values of a part that are not one small value broadcast."""
    found = {value for value in part.arguments if not graph.is_small(value)}
    for op in part.ops:  # in order: operands come before their readers
        if found.intersection(graph.operands[op]):
            found.update(value for value in graph.results[op] if not graph.is_small(value))
    return found


def _replacements(graph: StepGraph) -> dict[int, int]:
    """Map new values to the state that they replace, if they have no other use."""
    found: dict[int, int] = {}
    several = set(graph.outputs) | graph.state
    for old, new in graph.replacements.items():
        if new in found:
            several.add(new)
        found[new] = old
    return {new: old for new, old in found.items() if new not in several}


def _place(old: int, part: Function) -> int | None:
    """Return the position of a state among the arguments of a part."""
    return part.arguments.index(old) if old in part.arguments else None


def _elements(swept: SweptUpdates, values: Sequence[SSAValue]) -> int:
    counts = (element_count(tensor_of(values[part.results[0]])) for part in swept.parts)
    return sum(count + TENSOR_ELEMENTS for count in counts)


def _piece(value: int, values: Sequence[SSAValue], graph: StepGraph) -> Tensor:
    tensor = tensor_of(values[value])
    return tensor if graph.is_small(value) else _flat(tensor)


def _flat(tensor: Tensor) -> Tensor:
    return tensor_type((PIECE_ELEMENTS,), tensor.element_type)
