"""Mixed precision: 16-bit activations and gradients, everything else in float32.

Matrix products, convolutions and attention are computed in 16 bits. So are ops between two of them, to avoid
widening and rounding a value again: elementwise ops, normalization (with float32 statistics), softmax,
pooling, and ops that only move elements. All other ops stay in float32:

* sums over elements or samples, losses, optimizers, logarithms, powers and roots; * the end of the network:
the ops from the last product to the loss (or another output), and the gradients from
  there to the first product of the backward pass;
* updates: the ops between the gradient of a parameter and its new value;
* ops that the program wants in float32 (`cgc.cirh.base.FLOAT32`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass

import numpy as np
from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp, StringAttr
from xdsl.dialects.func import FuncOp
from xdsl.ir import Operation, SSAValue
from xdsl.passes import ModulePass
from xdsl.rewriter import InsertPoint, Rewriter

from cgc.cirh import ops
from cgc.cirh.base import FLOAT32, CirhOp
from cgc.cirh.interface import MODE, OUTPUT_NAME, RESOURCE_NAME, alias_of, arguments_and_results
from cgc.cirh.ops import ops_where
from cgc.cirh.traits import Elements, Fp16, Samples
from cgc.cirh.types import (
    HALF_FORMAT,
    HalfFormat,
    element_type,
    half_format,
    half_type,
    numpy_dtype,
    require_tensor,
    shape_of,
    tensor_of,
    tensor_type,
)
from cgc.errors import InvalidModuleError, PipelineError
from cgc.precision import rounded_to_cb16

PRODUCTS = ops_where(lambda op: op.TRAITS.fp16 is Fp16.STARTS)
# Ops that only move elements, without lookups: these read few elements of the table that would be converted.
MOVES = ops_where(lambda op: op.TRAITS.elements.only_moves and op.TRAITS.elements is not Elements.LOOKED_UP)

FOLLOWERS = ops_where(lambda op: op.TRAITS.fp16 is Fp16.FOLLOWS)
_LOOKUPS = ops_where(lambda op: op.TRAITS.elements is Elements.LOOKED_UP)
_NORM_GRADIENTS = ops_where(
    lambda op: op.TRAITS.activations is not None and op.TRAITS.gradient_of is not None
)
_GRADIENT_SUMS = _NORM_GRADIENTS | ops_where(lambda op: op.TRAITS.samples is Samples.SUMMED)
_UPDATE_ENDS = ops_where(lambda op: op.TRAITS.ends_update)

_F16, _F32 = element_type("float16"), element_type("float32")


def is_float32(value: SSAValue) -> bool:
    """Return True if a value is a tensor of float32."""
    return tensor_of(value).element_type == _F32


def narrow_operands(op: CirhOp) -> list[int]:
    """Return the positions of the operands that an op of the region reads in 16 bits."""
    operands = list(op.operands)[: op.TRAITS.activations]
    return [index for index, operand in enumerate(operands) if is_float32(operand)]


def narrow_results(op: CirhOp) -> list[SSAValue]:
    """Return the results that an op of the region computes in 16 bits."""
    results = list(op.results)[: None if op.TRAITS.activations is None else 1]
    return [result for result in results if is_float32(result)]


def fp16_region(function: FuncOp) -> list[CirhOp]:
    """Return the float32 ops of a step to be computed in 16 bits, in order."""
    ops = [op for op in function.body.block.ops if isinstance(op, CirhOp)]
    ops = [op for op in ops if FLOAT32 not in op.attributes]
    float32_ops = _end_of_network(function, ops) | _updates(function)
    useful = _ops_reaching(ops, PRODUCTS | _GRADIENT_SUMS)
    region = _products_and_followers(ops, float32_ops, useful)
    _add_embeddings(ops, float32_ops, region)
    _add_moves(ops, region)
    return [op for op in ops if op in region]


def _products_and_followers(
    ops: Sequence[CirhOp], float32_ops: set[Operation], useful: set[Operation]
) -> set[CirhOp]:
    """Return products, and followers that read a result of the region and lead to a product or gradient."""
    region: set[CirhOp] = set()
    narrow: set[SSAValue] = set()
    for op in ops:
        operands = [op.operands[index] for index in narrow_operands(op)]
        follows = type(op) in FOLLOWERS and op in useful and op not in float32_ops
        if operands and (type(op) in PRODUCTS or (follows and not narrow.isdisjoint(operands))):
            region.add(op)
            narrow.update(narrow_results(op))
    return region


def _add_embeddings(ops: Sequence[CirhOp], float32_ops: set[Operation], region: set[CirhOp]) -> None:
    """Add the ops between lookups of embeddings and the first product."""
    lookups = [op for op in ops if type(op) in _LOOKUPS and op not in region]
    embedded = _closure(lookups, _users, lambda op: type(op) in FOLLOWERS) - set(lookups)
    for op in reversed(ops):
        if op in embedded and op not in float32_ops and _is_used_in(op, region):
            region.add(op)


def _add_moves(ops: Sequence[CirhOp], region: set[CirhOp]) -> None:
    """Add moves of values that are used only in 16 bits, since rounding before them is the same as after."""
    for op in reversed(ops):
        if type(op) in MOVES and op not in region and narrow_results(op) and _is_used_in(op, region):
            region.add(op)


def _is_used_in(op: CirhOp, region: set[CirhOp]) -> bool:
    """Return True if all uses of an op's 16-bit results are 16-bit operands of ops of the region."""
    uses = [use for result in narrow_results(op) for use in result.uses]
    return bool(uses) and all(
        use.operation in region and use.index in narrow_operands(use.operation) for use in uses
    )


def _end_of_network(function: FuncOp, ops: Sequence[CirhOp]) -> set[Operation]:
    """Return the ops from the last products to the outputs, and from these ops to the next products."""
    products = {op for op in ops if type(op) in PRODUCTS}
    after_products = _closure(products, _users, lambda _: True) - products

    def is_after(op: Operation) -> bool:
        return op in after_products and type(op) not in PRODUCTS

    forward = _closure(filter(is_after, _output_producers(function)), _producers, is_after)
    return _closure(forward, _users, is_after)


def _output_producers(function: FuncOp) -> list[Operation]:
    """Return the producers of the loss; of all outputs if the program does not train."""
    _, results = arguments_and_results(function)
    names = [result.text(OUTPUT_NAME) for result in results]
    training = function.attributes.get(MODE) == StringAttr("train")
    is_output = [name is not None and (not training or name == "output_loss") for name in names]
    returned = function.get_return_op()
    values = [] if returned is None else list(returned.operands)
    return [
        owner
        for value, selected in zip(values, is_output, strict=True)
        if selected and isinstance(owner := value.owner, Operation)
    ]


def _updates(function: FuncOp) -> set[Operation]:
    """Return the ops between gradients of parameters and the new state."""
    arguments, _ = arguments_and_results(function)
    returned = function.get_return_op()
    aliases = [index for argument in arguments if (index := alias_of(argument)) is not None]
    values = [] if returned is None else [returned.operands[index] for index in aliases]
    producers = [value.owner for value in values if isinstance(value.owner, Operation)]
    update_ops = [op for op in producers if type(op) not in _UPDATE_ENDS]
    return _closure(update_ops, _producers, lambda op: type(op) not in _UPDATE_ENDS)


def _ops_reaching(ops: Sequence[CirhOp], kinds: AbstractSet[type[Operation]]) -> set[Operation]:
    """Return ops whose results have ops of these kinds as direct or indirect users."""
    found: set[Operation] = set()
    for op in reversed(ops):
        if any(type(user) in kinds or user in found for user in _users(op)):
            found.add(op)
    return found


def _closure(
    start: Iterable[Operation],
    adjacent: Callable[[Operation], Iterable[Operation]],
    accepts: Callable[[Operation], bool],
) -> set[Operation]:
    """Return `start` and all ops that are reached from it through ops that `accepts` is true for."""
    found = set(start)
    pending = list(found)
    while pending:
        for op in adjacent(pending.pop()):
            if op not in found and accepts(op):
                found.add(op)
                pending.append(op)
    return found


def _producers(op: Operation) -> list[Operation]:
    return [owner for operand in op.operands if isinstance(owner := operand.owner, Operation)]


def _users(op: Operation) -> list[Operation]:
    return [use.operation for result in op.results for use in result.uses]


_FORMATS: dict[str, HalfFormat] = {
    "mixed_float16": "float16",
    "mixed_bfloat16": "bfloat16",
    "cbfloat16": "cbfloat16",
}
_SUMS = (ops.AddOp, ops.SubOp)

# About half of the range: added to a score it is still finite, and its exponential is 0 as for any larger
# mask.
_MAX_MASK: dict[HalfFormat, float] = {"float16": 2.0**15, "bfloat16": 2.0**126, "cbfloat16": 2.0**31}


@dataclass(frozen=True)
class PrecisionPass(ModulePass):
    """Computes the ops of `fp16_region` in 16 bits.

    Values of the region get the type f16 or bf16; the attribute `cs.fp16_type` of the function is the format.
    Each value that enters or leaves the region is cast once. Ops that are already in 16 bits do not change,
    so the pass is idempotent.

    Attributes:
        mode: mixed_float16, mixed_bfloat16 or cbfloat16.
    """

    name = "precision"
    mode: str

    def __post_init__(self) -> None:
        if self.mode not in _FORMATS:
            raise ValueError(f"mode is {self.mode!r}, expected one of {', '.join(_FORMATS)}")

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        """Rewrite the module in place.

        Raises:
            PipelineError: the module is in the other 16-bit format already.
            InvalidModuleError: it has float16 state, which would not hold cbfloat16.
        """
        for function in op.body.ops:
            if isinstance(function, FuncOp):
                _rewrite(function, _FORMATS[self.mode])


def _rewrite(function: FuncOp, half: HalfFormat) -> None:
    _check_format(function, half)
    members = fp16_region(function)
    narrow_uses = {
        (member, index): _is_mask(member, index) for member in members for index in narrow_operands(member)
    }
    casts = _Casts(function, half)
    for member in members:
        for result in narrow_results(member):
            # The result has 16 bits; users that need float32 read a cast.
            value = Rewriter.replace_value_with_new_type(
                result, tensor_type(shape_of(result), half_type(half))
            )
            for use in list(value.uses):
                if (use.operation, use.index) not in narrow_uses:
                    use.operation.operands[use.index] = casts.widen(value)
    for (member, index), is_mask in narrow_uses.items():
        if is_float32(member.operands[index]):
            member.operands[index] = casts.narrow(member, index, is_mask)
    function.attributes[HALF_FORMAT] = StringAttr(half)


def _check_format(function: FuncOp, half: HalfFormat) -> None:
    if HALF_FORMAT in function.attributes and half_format(function) != half:
        raise PipelineError(
            f"func.func @{function.sym_name.data} is in {half_format(function)} already, "
            f"got the precision {half}; a module has one 16-bit format"
        )
    if half != "cbfloat16":
        return
    for argument in arguments_and_results(function)[0]:
        state = argument.text(RESOURCE_NAME)
        if state is not None and require_tensor(argument.type).element_type == _F16:
            raise InvalidModuleError(
                f"{argument.where}, {state}, is float16, expected float32 with the precision cbfloat16, "
                "which float16 does not hold; give the variable the type float32 and cast where it is used"
            )


def _is_mask(op: Operation, index: int) -> bool:
    """Return True if an operand, or a move of it, is only added to the scores of an attention."""
    if isinstance(op, ops.AttentionOp):
        return index == 3 and op.has_bias
    uses = [use for result in op.results for use in result.uses]
    if isinstance(op, _SUMS):
        return all(_leads_to_softmax(use.operation) for use in uses)
    return type(op) in MOVES and all(_is_mask(use.operation, use.index) for use in uses)


def _leads_to_softmax(op: Operation) -> bool:
    users = [use.operation for result in op.results for use in result.uses]
    return isinstance(op, ops.SoftmaxOp) or (type(op) in MOVES and all(map(_leads_to_softmax, users)))


def _has_constant_beyond(value: SSAValue, limit: float) -> bool:
    """Return True if a value depends on a constant of a larger magnitude, such as -1e9."""
    pending, seen = [value.owner], set()
    while pending:
        op = pending.pop()
        if not isinstance(op, CirhOp) or op in seen:
            continue
        seen.add(op)
        if isinstance(op, ops.ConstOp) and is_float32(op.result) and (np.abs(op.to_array()) > limit).any():
            return True
        pending += [operand.owner for operand in op.operands]
    return False


class _Casts:
    """The casts at the border of the region, one for each value and direction."""

    def __init__(self, function: FuncOp, half: HalfFormat) -> None:
        self._half = half
        self._first = next(iter(function.body.block.ops))
        self._known: dict[tuple[SSAValue, str], SSAValue] = {}

    def widen(self, value: SSAValue) -> SSAValue:
        """Return the float32 copy of a value of the region."""
        key = (value, "wide")
        if key not in self._known:
            cast = ops.CastOp(value, _F32)
            self._known[key] = self._insert(cast, value, value.owner)
        return self._known[key]

    def narrow(self, reader: CirhOp, index: int, is_mask: bool) -> SSAValue:
        """Return the 16-bit copy of a float32 operand; a mask is clamped to the range of the format."""
        value = reader.operands[index]
        key = (value, "mask" if is_mask else "narrow")
        if key not in self._known:
            narrow: CirhOp | None = self._constant(value, is_mask)
            if narrow is None:
                must_clamp = is_mask and _has_constant_beyond(value, _MAX_MASK[self._half])
                narrow = ops.CastOp(
                    self._clamp(value, reader) if must_clamp else value, half_type(self._half)
                )
            self._known[key] = self._insert(narrow, narrow.operands[0] if narrow.operands else value, reader)
        return self._known[key]

    def _constant(self, value: SSAValue, is_mask: bool) -> ops.ConstOp | None:
        """Return a constant in 16 bits; None for other values, and for cbfloat16 beyond float16."""
        if not isinstance(value.owner, ops.ConstOp):
            return None
        array = value.owner.to_array().astype(np.float32)
        if is_mask:
            array = np.clip(array, -_MAX_MASK[self._half], _MAX_MASK[self._half])
        if self._half == "cbfloat16":
            array = rounded_to_cb16(array)
        with np.errstate(over="ignore"):
            half = array.astype(numpy_dtype(half_type(self._half)))
        if self._half == "cbfloat16" and not np.array_equal(half.astype(np.float32), array, equal_nan=True):
            return None
        return ops.ConstOp.from_array(half)

    def _clamp(self, value: SSAValue, reader: CirhOp) -> SSAValue:
        limit = _MAX_MASK[self._half]
        scalar = tensor_type([], "float32")
        low = self._insert(ops.ConstOp.splat(-limit, scalar), value, reader)
        high = self._insert(ops.ConstOp.splat(limit, scalar), low, reader)
        return self._insert(ops.ClampOp(value, low, high), high, reader)

    def _insert(self, op: CirhOp, after: SSAValue, named_as: object) -> SSAValue:
        """Insert an op after the producer of a value, or at the beginning of the function."""
        owner = after.owner
        point = InsertPoint.after(owner) if isinstance(owner, Operation) else InsertPoint.before(self._first)
        Rewriter.insert_op(op, point)
        if isinstance(named_as, CirhOp):
            op.take_origin(named_as)
        return op.results[0]
