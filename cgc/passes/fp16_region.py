"""Which ops of a step are computed in 16 bits.

Matrix products, convolutions and attention are. What lies between two of them follows, so that a value is
not widened and rounded again on its way: elementwise ops, normalization (with float32 statistics), softmax,
pooling, and ops that only move elements. Everything else stays float32:

* sums over elements or samples, losses, optimizers, logarithms, powers and roots;
* the end of the network: what leads to the loss (or another output) after the last product, and the
  gradients from there to the first product of the backward pass;
* updates: what lies between the gradient of a parameter and its new value;
* what the program wants in float32 (`cgc.cirh.base.FLOAT32`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from collections.abc import Set as AbstractSet

from xdsl.dialects.builtin import StringAttr
from xdsl.dialects.func import FuncOp
from xdsl.ir import Operation, SSAValue

from cgc.cirh.base import FLOAT32, CirhOp
from cgc.cirh.interface import MODE, OUTPUT_NAME, alias_of, arguments_and_results
from cgc.cirh.ops import ops_where
from cgc.cirh.traits import Elements, Fp16, Samples
from cgc.cirh.types import element_type, tensor_of

PRODUCTS = ops_where(lambda op: op.TRAITS.fp16 is Fp16.STARTS)
MOVES = ops_where(lambda op: op.TRAITS.elements.only_moves and op.TRAITS.elements is not Elements.LOOKED_UP)
"""Ops that only move elements; not lookups, which read few elements of the table that would be narrowed."""

FOLLOWERS = ops_where(lambda op: op.TRAITS.fp16 is Fp16.FOLLOWS)
_LOOKUPS = ops_where(lambda op: op.TRAITS.elements is Elements.LOOKED_UP)
_NORM_GRADIENTS = ops_where(
    lambda op: op.TRAITS.activations is not None and op.TRAITS.gradient_of is not None
)
_GRADIENT_SUMS = _NORM_GRADIENTS | ops_where(lambda op: op.TRAITS.samples is Samples.SUMMED)
_ENDS_OF_UPDATES = ops_where(lambda op: op.TRAITS.ends_update)

_F32 = element_type("float32")


def is_float32(value: SSAValue) -> bool:
    """Whether a value is a tensor of float32."""
    return tensor_of(value).element_type == _F32


def narrow_operands(op: CirhOp) -> list[int]:
    """Positions of the operands that an op of the region takes in 16 bits."""
    operands = list(op.operands)[: op.TRAITS.activations]
    return [index for index, operand in enumerate(operands) if is_float32(operand)]


def narrow_results(op: CirhOp) -> list[SSAValue]:
    """The results that an op of the region gives in 16 bits."""
    results = list(op.results)[: None if op.TRAITS.activations is None else 1]
    return [result for result in results if is_float32(result)]


def fp16_region(function: FuncOp) -> list[CirhOp]:
    """The float32 ops of a step that shall be computed in 16 bits, in order; none that are already."""
    ops = [op for op in function.body.block.ops if isinstance(op, CirhOp)]
    wanted = {op for op in ops if FLOAT32 in op.attributes}
    ops = [op for op in ops if op not in wanted]
    kept = _end_of_network(function, ops) | _updates(function)
    useful = _leading_to(ops, PRODUCTS | _GRADIENT_SUMS)
    region = _between(ops, kept, useful)
    _add_embeddings(ops, kept, region)
    _add_moves(ops, region)
    return [op for op in ops if op in region]


def _between(ops: Sequence[CirhOp], kept: set[Operation], useful: set[Operation]) -> set[CirhOp]:
    """Products, and the followers that take a value of the region and lead to a product or a gradient."""
    region: set[CirhOp] = set()
    narrow: set[SSAValue] = set()
    for op in ops:
        operands = [op.operands[index] for index in narrow_operands(op)]
        follows = type(op) in FOLLOWERS and op in useful and op not in kept
        if operands and (type(op) in PRODUCTS or (follows and not narrow.isdisjoint(operands))):
            region.add(op)
            narrow.update(narrow_results(op))
    return region


def _add_embeddings(ops: Sequence[CirhOp], kept: set[Operation], region: set[CirhOp]) -> None:
    """Adds what lies between the lookup of embeddings and the first product."""
    lookups = [op for op in ops if type(op) in _LOOKUPS and op not in region]
    embedded = _closure(lookups, _users, lambda op: type(op) in FOLLOWERS) - set(lookups)
    for op in reversed(ops):
        if op in embedded and op not in kept and _is_used_in(op, region):
            region.add(op)


def _add_moves(ops: Sequence[CirhOp], region: set[CirhOp]) -> None:
    """Adds moves of values that are used in 16 bits alone: rounding is the same before and after."""
    for op in reversed(ops):
        if type(op) in MOVES and op not in region and narrow_results(op) and _is_used_in(op, region):
            region.add(op)


def _is_used_in(op: CirhOp, region: set[CirhOp]) -> bool:
    """Whether all uses of an op's 16-bit results are operands that ops of the region take in 16 bits."""
    uses = [use for result in narrow_results(op) for use in result.uses]
    return bool(uses) and all(
        use.operation in region and use.index in narrow_operands(use.operation) for use in uses
    )


def _end_of_network(function: FuncOp, ops: Sequence[CirhOp]) -> set[Operation]:
    """Ops between the last products and the outputs, and from there to the first products after them."""
    products = {op for op in ops if type(op) in PRODUCTS}
    after_products = _closure(products, _users, lambda _: True) - products

    def is_after(op: Operation) -> bool:
        return op in after_products and type(op) not in PRODUCTS

    forward = _closure(filter(is_after, _makers_of_outputs(function)), _makers, is_after)
    return _closure(forward, _users, is_after)


def _makers_of_outputs(function: FuncOp) -> list[Operation]:
    """The ops that make the loss, in a program without one those that make any output."""
    _, results = arguments_and_results(function)
    names = [result.text(OUTPUT_NAME) for result in results]
    training = function.attributes.get(MODE) == StringAttr("train")
    wanted = [name is not None and (not training or name == "output_loss") for name in names]
    returned = function.get_return_op()
    values = [] if returned is None else list(returned.operands)
    return [
        owner
        for value, is_wanted in zip(values, wanted, strict=True)
        if is_wanted and isinstance(owner := value.owner, Operation)
    ]


def _updates(function: FuncOp) -> set[Operation]:
    """Ops between the gradients of parameters and the new state."""
    arguments, _ = arguments_and_results(function)
    returned = function.get_return_op()
    aliases = [index for argument in arguments if (index := alias_of(argument)) is not None]
    values = [] if returned is None else [returned.operands[index] for index in aliases]
    makers = [value.owner for value in values if isinstance(value.owner, Operation)]
    inside = [op for op in makers if type(op) not in _ENDS_OF_UPDATES]
    return _closure(inside, _makers, lambda op: type(op) not in _ENDS_OF_UPDATES)


def _leading_to(ops: Sequence[CirhOp], kinds: AbstractSet[type[Operation]]) -> set[Operation]:
    """Ops with one of these kinds among the users of their results, or the users of those."""
    found: set[Operation] = set()
    for op in reversed(ops):
        if any(type(user) in kinds or user in found for user in _users(op)):
            found.add(op)
    return found


def _closure(
    start: Iterable[Operation],
    neighbours: Callable[[Operation], Iterable[Operation]],
    belongs: Callable[[Operation], bool],
) -> set[Operation]:
    """`start`, and what is found from there step by step as long as it belongs."""
    found = set(start)
    waiting = list(found)
    while waiting:
        for op in neighbours(waiting.pop()):
            if op not in found and belongs(op):
                found.add(op)
                waiting.append(op)
    return found


def _makers(op: Operation) -> list[Operation]:
    return [owner for operand in op.operands if isinstance(owner := operand.owner, Operation)]


def _users(op: Operation) -> list[Operation]:
    return [use.operation for result in op.results for use in result.uses]
