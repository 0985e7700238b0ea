"""Passes over loop nests: fusion, common subexpressions, dead code."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass

from xdsl.context import Context
from xdsl.dialects import arith
from xdsl.dialects.builtin import ModuleOp
from xdsl.dialects.func import CallOp, FuncOp
from xdsl.dialects.linalg.ops import FillOp, IndexOp, YieldOp
from xdsl.ir import Block, Operation, SSAValue
from xdsl.ir.affine import (
    AffineMap,
)
from xdsl.passes import ModulePass
from xdsl.rewriter import Rewriter
from xdsl.traits import Commutative, IsTerminator

from cgc.cirh.types import shape_of
from cgc.lair.affine import compose, inverse_permutation, mark_partial_dims
from cgc.lair.build import affine_index
from cgc.lair.dialect import (
    GenericOp,
    determines_extents,
    insert_nest,
    is_move,
    keep_operands,
    loop_extents,
    merge_equal_inputs,
    points,
    reads_outputs,
)


@dataclass(frozen=True)
class LairFusePass(ModulePass):
    """Fuse producers into their consumers.

    A parallel producer is fused if its only user is one operand of the consumer and the consumer has no more
    iterations, so that no element is computed twice. A producer that only moves elements (a broadcast, a
    transpose, a slice, a constant) is folded into the indexing maps of every consumer. Reductions are not
    fused into their consumers, where each iteration would repeat them.
    """

    name = "lair-fuse"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        """Rewrite all functions in place."""
        for function in op.walk():
            if isinstance(function, FuncOp) and function.body.blocks:
                _fuse(function.body.block)


def _fuse(block: Block) -> None:
    """Fuse inputs of every nest until none is left that can be fused; a fused producer adds its inputs."""
    for op in list(block.ops):
        if not isinstance(op, GenericOp):
            continue
        consumer, position = merge_equal_inputs(op), 0
        while position < len(consumer.inputs):
            fused = _without_input(consumer, position)
            if fused is None:
                position += 1
            else:
                consumer, position = merge_equal_inputs(fused), 0


def _without_input(consumer: GenericOp, position: int) -> GenericOp | None:
    """Compute an input in the body of its consumer; return None if it cannot or should not be fused."""
    producer = consumer.inputs[position].owner
    if isinstance(producer, FillOp):
        return _with_constant(consumer, position, producer)
    if not isinstance(producer, GenericOp) or len(producer.results) != 1:
        return None
    iterations = _producer_iterations(consumer, position, producer)
    if iterations is None or not _is_profitable(consumer, producer):
        return None
    fused = _fuse_producer(consumer, position, producer, iterations)
    if fused is not None and not producer.results[0].uses:
        Rewriter.erase_op(producer)
    return fused


def _producer_iterations(consumer: GenericOp, position: int, producer: GenericOp) -> AffineMap | None:
    """Return the map from iterations of the consumer to those of the producer that compute its input."""
    if not producer.is_parallel or reads_outputs(producer):
        return None
    inverse = inverse_permutation(producer.maps[-1])
    return None if inverse is None else compose(inverse, consumer.maps[position])


def _is_profitable(consumer: GenericOp, producer: GenericOp) -> bool:
    """Return True if the producer only moves elements, or would run no more iterations than before."""
    if is_move(producer):
        return True
    readers = [use.operation for use in producer.results[0].uses]
    return readers == [consumer] and points(consumer) <= points(producer)


def _fuse_producer(
    consumer: GenericOp, position: int, producer: GenericOp, iterations: AffineMap
) -> GenericOp | None:
    """Build the fused nest; return None if its operands would not determine the extents of all loops."""
    extents = loop_extents(consumer)
    inner = [
        mark_partial_dims(compose(mapping, iterations), extents, shape_of(operand))
        for mapping, operand in zip(producer.maps[:-1], producer.inputs, strict=True)
    ]
    maps = [*consumer.maps[:position], *inner, *consumer.maps[position + 1 :]]
    if not determines_extents(maps, len(consumer.iterator_types)):
        return None
    inputs = [*consumer.inputs[:position], *producer.inputs, *consumer.inputs[position + 1 :]]
    is_last_reader = producer.results[0].has_one_use()
    # The producer keeps its body if other ops read its result.
    first = _detach_body(producer) if is_last_reader else producer.body.clone().detach_block(0)
    _rewrite_indices(first, iterations)
    body = _join(first, _detach_body(consumer), position)
    return _replace(consumer, insert_nest(consumer, inputs, list(consumer.outputs), maps, body))


def _detach_body(op: GenericOp) -> Block:
    return op.body.detach_block(0)


def _rewrite_indices(body: Block, iterations: AffineMap) -> None:
    """Compute loop indices of the producer from those of the consumer."""
    if iterations == AffineMap.identity(iterations.num_dims):
        return
    for op in list(body.ops):
        if isinstance(op, IndexOp):
            computed = Block()
            value = affine_index(computed, iterations.results[op.dim.value.data]).value
            for index_op in list(computed.ops):
                computed.detach_op(index_op)
                body.insert_op_before(index_op, op)
            op.result.replace_all_uses_with(value)
            body.erase_op(op)


def _join(first: Block, second: Block, position: int) -> Block:
    """Join two bodies; the result of the first is argument `position` of the second."""
    # The shorter body is moved into the longer one, so that fusing a chain of n ops takes O(n) time.
    end = first.last_op
    assert isinstance(end, YieldOp), "bodies are checked before"
    result = end.operands[0]
    first.erase_op(end)
    first.erase_arg(first.args[-1])  # the previous value of the output, which no op reads
    if _is_longer(first, second):
        for index, argument in enumerate(list(second.args)):
            if index == position:
                argument.replace_all_uses_with(result)
            else:
                index_in_first = index if index < position else len(first.args)
                argument.replace_all_uses_with(first.insert_arg(argument.type, index_in_first))
        _move(second, first, None)
        return first
    for index, argument in enumerate(list(first.args)):
        inserted = second.insert_arg(argument.type, position + index)
        if argument is result:
            result = inserted
        argument.replace_all_uses_with(inserted)
    replaced_argument = second.args[position + len(first.args)]
    replaced_argument.replace_all_uses_with(result)
    second.erase_arg(replaced_argument)
    _move(first, second, second.first_op)
    return second


def _is_longer(first: Block, second: Block) -> bool:
    """Return True if the first block has more ops, in time proportional to the shorter one."""
    first_end, second_end = first.first_op, second.first_op
    while first_end is not None and second_end is not None:
        first_end, second_end = first_end.next_op, second_end.next_op
    return first_end is not None


def _move(source: Block, target: Block, before: Operation | None) -> None:
    """Move all ops to the target, before one of its ops or to its end."""
    for op in list(source.ops):
        source.detach_op(op)
        if before is None:
            target.add_op(op)
        else:
            target.insert_op_before(op, before)


def _with_constant(consumer: GenericOp, position: int, fill: FillOp) -> GenericOp | None:
    """Replace an input of equal elements by a constant in the body."""
    number = fill.inputs[0].owner
    maps = [*consumer.maps[:position], *consumer.maps[position + 1 :]]
    if not isinstance(number, arith.ConstantOp) or not determines_extents(maps, len(consumer.iterator_types)):
        return None
    block = _detach_body(consumer)
    copy = number.clone()
    assert block.first_op is not None, "bodies end in linalg.yield"
    block.insert_op_before(copy, block.first_op)
    block.args[position].replace_all_uses_with(copy.result)
    block.erase_arg(block.args[position])
    inputs = [*consumer.inputs[:position], *consumer.inputs[position + 1 :]]
    return _replace(consumer, insert_nest(consumer, inputs, list(consumer.outputs), maps, block))


def _replace(old: GenericOp, new: GenericOp) -> GenericOp:
    """Replace a nest with another one."""
    for before, after in zip(old.results, new.results, strict=True):
        before.replace_all_uses_with(after)
    Rewriter.erase_op(old)
    return new


@dataclass(frozen=True)
class LairCsePass(ModulePass):
    """Merge ops that compute the same (common subexpression elimination)."""

    name = "lair-cse"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        """Rewrite all functions in place."""
        for function in list(op.walk()):
            if isinstance(function, FuncOp) and function.body.blocks:
                _eliminate(function.body.block)


def _eliminate(block: Block) -> None:
    """Merge equal ops of a block, nests and their bodies included."""
    # All ops of LAIR are pure, calls included.
    known: dict[Hashable, Operation] = {}
    for op in list(block.ops):
        if isinstance(op, GenericOp):
            op = merge_equal_inputs(op)
            _eliminate(op.body.block)
        if op.has_trait(IsTerminator):
            continue
        first = known.setdefault(_op_key(op), op)
        if first is not op:
            for old, new in zip(op.results, first.results, strict=True):
                old.replace_all_uses_with(new)
            block.erase_op(op)


def _op_key(op: Operation, enclosing: dict[SSAValue, int] | None = None) -> Hashable:
    """Return a key that is equal for ops that compute the same; values of enclosing bodies are numbers."""
    numbers = enclosing or {}
    operands: list[Hashable] = [numbers.get(operand, id(operand)) for operand in op.operands]
    if op.has_trait(Commutative):
        operands.sort(key=hash)
    regions = tuple(_block_key(block, numbers) for region in op.regions for block in region.blocks)
    properties = frozenset(op.properties.items())
    attributes = frozenset(op.attributes.items())
    return op.name, tuple(operands), properties, attributes, tuple(op.result_types), regions


def _block_key(block: Block, outer: dict[SSAValue, int]) -> Hashable:
    numbers = dict(outer)
    for argument in block.args:
        numbers[argument] = -1 - len(numbers)
    keys = []
    for op in block.ops:
        keys.append(_op_key(op, numbers))
        for result in op.results:
            numbers[result] = -1 - len(numbers)
    return tuple(argument.type for argument in block.args), tuple(keys)


@dataclass(frozen=True)
class LairDcePass(ModulePass):
    """Remove unused ops, inputs that no body reads, and declarations without calls (dead code)."""

    name = "lair-dce"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        """Rewrite the module in place; functions with a body are kept with their arguments."""
        functions = [inner for inner in op.walk() if isinstance(inner, FuncOp)]
        for function in functions:
            if function.body.blocks:
                _remove_dead(function.body.block)
        called = {inner.callee.root_reference.data for inner in op.walk() if isinstance(inner, CallOp)}
        for function in functions:
            if not function.body.blocks and function.sym_name.data not in called:
                Rewriter.erase_op(function)


def _remove_dead(block: Block) -> None:
    """Remove ops without users."""
    # In reverse order, one pass is enough.
    for op in reversed(list(block.ops)):
        if op.has_trait(IsTerminator):
            continue
        if not any(result.uses for result in op.results):
            block.erase_op(op)
        elif isinstance(op, GenericOp):
            _remove_dead_operands(op)


def _remove_dead_operands(op: GenericOp) -> None:
    """Remove inputs and outputs that the body and other ops do not use."""
    _remove_dead(op.body.block)
    arguments = op.body.block.args
    first = len(op.inputs)
    outputs = [
        position
        for position, result in enumerate(op.results)
        if result.uses or arguments[first + position].uses
    ]
    inputs = [position for position in range(first) if arguments[position].uses]
    if len(inputs) + len(outputs) == len(op.operands):
        return
    maps = [op.maps[position] for position in (*inputs, *(first + position for position in outputs))]
    if determines_extents(maps, len(op.iterator_types)):
        _remove_dead_operands(keep_operands(op, inputs, {}, outputs))
