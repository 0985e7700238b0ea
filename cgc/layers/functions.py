"""A part of a step as a separate function: its arguments, results and module."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass

from xdsl.dialects.builtin import ModuleOp, StringAttr
from xdsl.dialects.func import FuncOp, ReturnOp
from xdsl.ir import Block, SSAValue

from cgc.cirh.base import CirhOp
from cgc.cirh.interface import INPUT_NAME, MODE, OUTPUT_NAME, RESOURCE_NAME, build_graph_function
from cgc.cirh.ops import ops_where
from cgc.cirh.random import KEY, SeededRandomOp
from cgc.cirh.types import HALF_FORMAT
from cgc.layers.graph import StepGraph
from cs_toolkit.step import MODEL_STATE

_SEEDED = ops_where(lambda op: issubclass(op, SeededRandomOp))


@dataclass(frozen=True)
class Function:
    """A part of a step.

    Attributes:
        ops: in an order that follows from their dependencies, whatever their order in the program.
        arguments: values that they read and do not compute, in the order of their first use, weights first.
        weights: number of arguments that are state and come with a layer.
        results: values that other parts need.
        in_pieces: its large values are pieces of tensors (`cgc.layers.pieces`).
    """

    ops: tuple[int, ...]
    arguments: tuple[int, ...]
    weights: int
    results: tuple[int, ...]
    in_pieces: bool = False


def extract_function(graph: StepGraph, is_inside: Callable[[int], bool], results: Iterable[int]) -> Function:
    """Return the function that computes some values from the values of other parts.

    Args:
        graph: the step.
        is_inside: returns True for an op that this part computes if something in it needs its results.
        results: the values; one that is computed elsewhere, or an argument, is passed through.
    """
    wanted = tuple(dict.fromkeys(results))
    ops: dict[int, None] = {}
    pending = [(value, False) for value in reversed(wanted)]
    producers = graph.producer
    while pending:
        value, is_ready = pending.pop()
        producer = producers.get(value)
        if producer is None or producer in ops:
            continue
        if is_ready:
            ops[producer] = None
        elif is_inside(producer):
            pending.append((value, True))
            pending += [(operand, False) for operand in reversed(graph.operands[producer])]
    computed = {value for op in ops for value in graph.results[op]}
    read = (*(value for op in ops for value in graph.operands[op]), *wanted)
    arguments = [value for value in dict.fromkeys(read) if value not in computed]
    weights = [value for value in arguments if value in graph.state and not graph.is_small(value)]
    weight_set = set(weights)
    others = [value for value in arguments if value not in weight_set]
    return Function(tuple(ops), (*weights, *others), len(weights), wanted)


def structure_key(part: Function, graph: StepGraph) -> Hashable:
    """Return a key of a part's computation, without names: equal for copies of a layer."""
    local: dict[int, int] = {value: index for index, value in enumerate(part.arguments)}
    op_keys = []
    for op in part.ops:
        op_keys.append((graph.labels[op], *[local[value] for value in graph.operands[op]]))
        for value in graph.results[op]:
            local[value] = len(local)
    return (
        tuple([graph.types[value] for value in part.arguments]),
        tuple(op_keys),
        tuple([local[value] for value in part.results]),
    )


def random_ops(part: Function, ops: Sequence[CirhOp]) -> tuple[SeededRandomOp, ...]:
    """Return the ops of a part whose keys are its last arguments."""
    # The set of classes is faster than isinstance on all ops.
    seeded = [op for index in part.ops if type(op := ops[index]) in _SEEDED]
    return tuple(op for op in seeded if isinstance(op, SeededRandomOp))


def build_part_module(
    part: Function, graph: StepGraph, ops: Sequence[CirhOp], values: Sequence[SSAValue], like: FuncOp
) -> ModuleOp:
    """Return the module of a part: weights are its state, other arguments its inputs; the keys come last.

    Args:
        part: the part.
        graph: the step.
        ops: of the step.
        values: of the step.
        like: the function of the step, whose precision and mode the part has.
    """
    types = [values[value].type for value in part.arguments]
    block = Block(arg_types=[*types, *(KEY for _ in random_ops(part, ops))])
    local: dict[int, SSAValue] = dict(zip(part.arguments, block.args, strict=False))
    keys = iter(block.args[len(part.arguments) :])
    for index in part.ops:
        op = ops[index]
        operands = [local[value] for value in graph.operands[index]]
        copy: CirhOp
        if isinstance(op, SeededRandomOp):
            copy = op.with_key(next(keys), *operands)
        else:
            copy = type(op).create(
                operands=operands,
                result_types=[result.type for result in op.results],
                properties=dict(op.properties),
                attributes=dict(op.attributes),
            )
        block.add_op(copy)
        local.update(zip(graph.results[index], copy.results, strict=True))
    terminator = ReturnOp(*(local[value] for value in part.results))
    block.add_op(terminator)
    return wrap_block(block, part.weights, terminator, like)


def wrap_block(block: Block, weights: int, terminator: ReturnOp, like: FuncOp) -> ModuleOp:
    """Return the module of a block; its first arguments are weights.

    Args:
        block: with its terminator.
        weights: number of weights.
        terminator: of the block.
        like: the function of the step, whose precision and mode the module has.
    """
    # Names are numbers, so that the modules of copies of a layer are equal.
    names = [(RESOURCE_NAME, f"{MODEL_STATE}{index}") for index in range(weights)]
    names += [(INPUT_NAME, f"input_{index}") for index in range(len(block.args) - weights)]
    arguments = [{key: StringAttr(name)} for key, name in names]
    results = [{OUTPUT_NAME: StringAttr(f"output_{index}")} for index in range(len(terminator.operands))]
    function = build_graph_function(block, terminator, arguments, results)
    for name in (MODE, HALF_FORMAT):
        if name in like.attributes:
            function.attributes[name] = like.attributes[name]
    return ModuleOp([function])
