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
from cgc.lair.affine import compose, inverse_permutation, partial
from cgc.lair.build import affine_index
from cgc.lair.dialect import (
    GenericOp,
    gives_every_loop,
    is_move,
    loop_extents,
    points,
    reads_outputs,
    replace_nest,
    with_distinct_inputs,
    with_operands,
)


@dataclass(frozen=True)
class LairFusePass(ModulePass):
    """Fuse producers into their consumers.

    A producer that computes is fused if its loops carry nothing, its one result is read only by the consumer
    and in one way, and the consumer has no more iterations, so that nothing is computed twice. A producer
    that only moves elements (a broadcast, a transpose, a slice, a constant) is folded into the indexing maps
    of every reader. Reductions are not fused into their readers: they would run again for each.
    """

    name = "lair-fuse"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        """Rewrite all functions in place."""
        for function in op.walk():
            if isinstance(function, FuncOp) and function.body.blocks:
                _fuse(function.body.block)


def _fuse(block: Block) -> None:
    """Fuse every input of every nest, repeatedly: a fused producer brings its inputs."""
    for op in list(block.ops):
        if not isinstance(op, GenericOp):
            continue
        consumer, position = with_distinct_inputs(op), 0
        while position < len(consumer.inputs):
            fused = _without_input(consumer, position)
            if fused is None:
                position += 1
            else:
                consumer, position = with_distinct_inputs(fused), 0


def _without_input(consumer: GenericOp, position: int) -> GenericOp | None:
    """Compute an input in the body of its consumer; None if that is not allowed."""
    producer = consumer.inputs[position].owner
    if isinstance(producer, FillOp):
        return _with_constant(consumer, position, producer)
    if not isinstance(producer, GenericOp) or len(producer.results) != 1:
        return None
    places = _places(consumer, position, producer)
    if places is None or not _is_worth_it(consumer, producer):
        return None
    fused = _fuse_producer(consumer, position, producer, places)
    if fused is not None and not producer.results[0].uses:
        Rewriter.erase_op(producer)
    return fused


def _places(consumer: GenericOp, position: int, producer: GenericOp) -> AffineMap | None:
    """Return the iteration of the producer that makes the element an iteration of the consumer reads."""
    if not producer.is_parallel or reads_outputs(producer):
        return None
    inverse = inverse_permutation(producer.maps[-1])
    return None if inverse is None else compose(inverse, consumer.maps[position])


def _is_worth_it(consumer: GenericOp, producer: GenericOp) -> bool:
    """Return True if the producer moves elements only, or would not be computed more often."""
    if is_move(producer):
        return True
    readers = [use.operation for use in producer.results[0].uses]
    return readers == [consumer] and points(consumer) <= points(producer)


def _fuse_producer(
    consumer: GenericOp, position: int, producer: GenericOp, places: AffineMap
) -> GenericOp | None:
    """Build the fused nest; None if no operand would determine the extent of a loop."""
    extents = loop_extents(consumer)
    inner = [
        partial(compose(mapping, places), extents, shape_of(operand))
        for mapping, operand in zip(producer.maps[:-1], producer.inputs, strict=True)
    ]
    maps = [*consumer.maps[:position], *inner, *consumer.maps[position + 1 :]]
    if not gives_every_loop(maps, len(consumer.iterator_types)):
        return None
    inputs = [*consumer.inputs[:position], *producer.inputs, *consumer.inputs[position + 1 :]]
    is_last_reader = producer.results[0].has_one_use()
    # The producer keeps its body while others read its result.
    first = _detach_body(producer) if is_last_reader else producer.body.clone().detach_block(0)
    _at_places(first, places)
    body = _join(first, _detach_body(consumer), position)
    return _exchange(consumer, replace_nest(consumer, inputs, list(consumer.outputs), maps, body))


def _detach_body(op: GenericOp) -> Block:
    return op.body.detach_block(0)


def _at_places(body: Block, places: AffineMap) -> None:
    """Rewrite a body of the producer's loops for those of the consumer."""
    if places == AffineMap.identity(places.num_dims):
        return
    for op in list(body.ops):
        if isinstance(op, IndexOp):
            moved = Block()
            value = affine_index(moved, places.results[op.dim.value.data]).value
            for made in list(moved.ops):
                moved.detach_op(made)
                body.insert_op_before(made, op)
            op.result.replace_all_uses_with(value)
            body.erase_op(op)


def _join(first: Block, second: Block, position: int) -> Block:
    """Join two bodies, where the result of the first is argument `position` of the second."""
    # The shorter one is moved into the longer one: a chain of n ops takes time in proportion to n.
    end = first.last_op
    assert isinstance(end, YieldOp), "bodies are checked before"
    result = end.operands[0]
    first.erase_op(end)
    first.erase_arg(first.args[-1])  # the previous value of its place, which nothing reads
    if _is_longer(first, second):
        for index, argument in enumerate(list(second.args)):
            if index == position:
                argument.replace_all_uses_with(result)
            else:
                place = index if index < position else len(first.args)
                argument.replace_all_uses_with(first.insert_arg(argument.type, place))
        _move(second, first, None)
        return first
    for index, argument in enumerate(list(first.args)):
        moved = second.insert_arg(argument.type, position + index)
        if argument is result:
            result = moved
        argument.replace_all_uses_with(moved)
    replaced_argument = second.args[position + len(first.args)]
    replaced_argument.replace_all_uses_with(result)
    second.erase_arg(replaced_argument)
    _move(first, second, second.first_op)
    return second


def _is_longer(first: Block, second: Block) -> bool:
    """Return True if the first has more ops, in the time of the shorter one."""
    one, other = first.first_op, second.first_op
    while one is not None and other is not None:
        one, other = one.next_op, other.next_op
    return one is not None


def _move(source: Block, target: Block, before: Operation | None) -> None:
    """Move all ops, before an op of the target or to its end."""
    for op in list(source.ops):
        source.detach_op(op)
        if before is None:
            target.add_op(op)
        else:
            target.insert_op_before(op, before)


def _with_constant(consumer: GenericOp, position: int, fill: FillOp) -> GenericOp | None:
    """Replace an input that is filled with one number by that number."""
    number = fill.inputs[0].owner
    maps = [*consumer.maps[:position], *consumer.maps[position + 1 :]]
    if not isinstance(number, arith.ConstantOp) or not gives_every_loop(maps, len(consumer.iterator_types)):
        return None
    block = _detach_body(consumer)
    inside = number.clone()
    assert block.first_op is not None, "bodies end in linalg.yield"
    block.insert_op_before(inside, block.first_op)
    block.args[position].replace_all_uses_with(inside.result)
    block.erase_arg(block.args[position])
    inputs = [*consumer.inputs[:position], *consumer.inputs[position + 1 :]]
    return _exchange(consumer, replace_nest(consumer, inputs, list(consumer.outputs), maps, block))


def _exchange(old: GenericOp, new: GenericOp) -> GenericOp:
    """Replace a nest by another one."""
    for before, after in zip(old.results, new.results, strict=True):
        before.replace_all_uses_with(after)
    Rewriter.erase_op(old)
    return new


@dataclass(frozen=True)
class LairCsePass(ModulePass):
    """Keep the first of several ops that compute the same; every op of LAIR is pure, calls included."""

    name = "lair-cse"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        """Rewrite all functions in place."""
        for function in list(op.walk()):
            if isinstance(function, FuncOp) and function.body.blocks:
                _eliminate(function.body.block)


def _eliminate(block: Block) -> None:
    """Merge equal ops of a block, nests and their bodies included."""
    known: dict[Hashable, Operation] = {}
    for op in list(block.ops):
        if isinstance(op, GenericOp):
            op = with_distinct_inputs(op)
            _eliminate(op.body.block)
        if op.has_trait(IsTerminator):
            continue
        first = known.setdefault(_op_key(op), op)
        if first is not op:
            for old, new in zip(op.results, first.results, strict=True):
                old.replace_all_uses_with(new)
            block.erase_op(op)


def _op_key(op: Operation, inside: dict[SSAValue, int] | None = None) -> Hashable:
    """Return a key that is equal for ops that compute the same; values of an enclosing body are numbered."""
    numbers = inside or {}
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
    """Remove ops without effect on results, inputs that no body reads, and functions without calls."""

    name = "lair-dce"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        """Rewrite the module in place; functions with a body are kept with their arguments."""
        functions = [inner for inner in op.walk() if isinstance(inner, FuncOp)]
        for function in functions:
            if function.body.blocks:
                _clean(function.body.block)
        called = {inner.callee.root_reference.data for inner in op.walk() if isinstance(inner, CallOp)}
        for function in functions:
            if not function.body.blocks and function.sym_name.data not in called:
                Rewriter.erase_op(function)


def _clean(block: Block) -> None:
    """Remove ops without users, from the last to the first, so that one pass is enough."""
    for op in reversed(list(block.ops)):
        if op.has_trait(IsTerminator):
            continue
        if not any(result.uses for result in op.results):
            block.erase_op(op)
        elif isinstance(op, GenericOp):
            _clean_nest(op)


def _clean_nest(op: GenericOp) -> None:
    """Remove inputs and outputs that the body and other ops do not use."""
    _clean(op.body.block)
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
    maps = [op.maps[position] for position in (*inputs, *(first + place for place in outputs))]
    if gives_every_loop(maps, len(op.iterator_types)):
        _clean_nest(with_operands(op, inputs, {}, outputs))
