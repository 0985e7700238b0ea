"""Mixed precision: 16-bit activations and gradients, everything else in float32."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp, StringAttr
from xdsl.dialects.func import FuncOp
from xdsl.ir import Operation, SSAValue
from xdsl.passes import ModulePass
from xdsl.rewriter import InsertPoint, Rewriter

from cgc.cirh import ops
from cgc.cirh.base import CirhOp
from cgc.cirh.interface import RESOURCE_NAME, arguments_and_results
from cgc.cirh.types import (
    HALF_FORMAT,
    ElementType,
    HalfFormat,
    checked_tensor,
    element_type,
    half_format,
    half_type,
    numpy_dtype,
    shape_of,
    tensor_type,
)
from cgc.errors import InvalidModuleError, PipelineError
from cgc.passes.fp16_region import MOVES, fp16_region, is_float32, narrow_operands, narrow_results
from cgc.precision import rounded_to_cb16

_FORMATS: dict[str, HalfFormat] = {
    "mixed_float16": "float16",
    "mixed_bfloat16": "bfloat16",
    "cbfloat16": "cbfloat16",
}
_F16, _F32 = element_type("float16"), element_type("float32")
_SUMS = (ops.AddOp, ops.SubOp)

_LARGEST_MASK: dict[HalfFormat, float] = {"float16": 2.0**15, "bfloat16": 2.0**126, "cbfloat16": 2.0**31}
"""Half of the range: with a score it is still finite, and its exponential is 0 as that of any larger mask."""


@dataclass(frozen=True)
class PrecisionPass(ModulePass):
    """Computes products and what lies between them in 16 bits, see `cgc.passes.fp16_region`.

    Values of the region get the type f16, or bf16, and the function says by `cs.fp16_type` what that is.
    Casts stand where a value enters or leaves the region, one for each value. What has 16 bits already stays
    as it is, so a second run changes nothing.

    Attributes:
        mode: mixed_float16, mixed_bfloat16 or cbfloat16.
    """

    name = "precision"
    mode: str

    def __post_init__(self) -> None:
        if self.mode not in _FORMATS:
            raise ValueError(f"mode is {self.mode!r}, expected one of {', '.join(_FORMATS)}")

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        """Rewrites the module in place.

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
            _narrow_result(result, half_type(half), narrow_uses, casts)
    for (member, index), is_mask in narrow_uses.items():
        if is_float32(member.operands[index]):
            member.operands[index] = casts.narrowed(member, index, is_mask)
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
        if state is not None and checked_tensor(argument.type).element_type == _F16:
            raise InvalidModuleError(
                f"{argument.where}, {state}, is float16, expected float32 with the precision cbfloat16, "
                "which float16 does not hold; give the variable the type float32 and cast where it is used"
            )


def _narrow_result(
    result: SSAValue,
    narrow: ElementType,
    narrow_uses: Mapping[tuple[CirhOp, int], bool],
    casts: _Casts,
) -> None:
    """Gives a result its 16-bit type, and a copy in float32 to those that do not take it so."""
    value = Rewriter.replace_value_with_new_type(result, tensor_type(shape_of(result), narrow))
    for use in list(value.uses):
        if (use.operation, use.index) not in narrow_uses:
            use.operation.operands[use.index] = casts.widened(value)


def _is_mask(op: Operation, index: int) -> bool:
    """Whether an operand is added to the scores of an attention, as it is or moved."""
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
    """Whether a constant of a larger magnitude is among what a value is computed from, such as -1e9."""
    waiting, seen = [value.owner], set()
    while waiting:
        op = waiting.pop()
        if not isinstance(op, CirhOp) or op in seen:
            continue
        seen.add(op)
        if isinstance(op, ops.ConstOp) and is_float32(op.result) and (np.abs(op.to_array()) > limit).any():
            return True
        waiting += [operand.owner for operand in op.operands]
    return False


class _Casts:
    """The casts on the border of the region: one for a value and a direction."""

    def __init__(self, function: FuncOp, half: HalfFormat) -> None:
        self._half = half
        self._first = next(iter(function.body.block.ops))
        self._known: dict[tuple[SSAValue, str], SSAValue] = {}

    def widened(self, value: SSAValue) -> SSAValue:
        """The float32 copy of a value of the region."""
        key = (value, "wide")
        if key not in self._known:
            cast = ops.CastOp(value, _F32)
            self._known[key] = self._insert(cast, value, value.owner)
        return self._known[key]

    def narrowed(self, reader: CirhOp, index: int, is_mask: bool) -> SSAValue:
        """The 16-bit copy of a float32 operand; of a mask, cut to what the format can hold."""
        value = reader.operands[index]
        key = (value, "mask" if is_mask else "narrow")
        if key not in self._known:
            narrow: CirhOp | None = self._constant(value, is_mask)
            if narrow is None:
                cut = is_mask and _has_constant_beyond(value, _LARGEST_MASK[self._half])
                narrow = ops.CastOp(self._cut(value, reader) if cut else value, half_type(self._half))
            self._known[key] = self._insert(narrow, narrow.operands[0] if narrow.operands else value, reader)
        return self._known[key]

    def _constant(self, value: SSAValue, is_mask: bool) -> ops.ConstOp | None:
        """A constant in 16 bits; None for other values, and where float16 cannot hold the cbfloat16."""
        if not isinstance(value.owner, ops.ConstOp):
            return None
        array = value.owner.to_array().astype(np.float32)
        if is_mask:
            array = np.clip(array, -_LARGEST_MASK[self._half], _LARGEST_MASK[self._half])
        if self._half == "cbfloat16":
            array = rounded_to_cb16(array)
        with np.errstate(over="ignore"):
            half = array.astype(numpy_dtype(half_type(self._half)))
        if self._half == "cbfloat16" and not np.array_equal(half.astype(np.float32), array, equal_nan=True):
            return None
        return ops.ConstOp.from_array(half)

    def _cut(self, value: SSAValue, reader: CirhOp) -> SSAValue:
        limit = _LARGEST_MASK[self._half]
        scalar = tensor_type([], "float32")
        low = self._insert(ops.ConstOp.splat(-limit, scalar), value, reader)
        high = self._insert(ops.ConstOp.splat(limit, scalar), low, reader)
        return self._insert(ops.ClampOp(value, low, high), high, reader)

    def _insert(self, op: CirhOp, after: SSAValue, named_as: object) -> SSAValue:
        """Puts an op behind the op that makes a value, or where the function begins."""
        owner = after.owner
        point = InsertPoint.after(owner) if isinstance(owner, Operation) else InsertPoint.before(self._first)
        Rewriter.insert_op(op, point)
        if isinstance(named_as, CirhOp):
            op.take_origin(named_as)
        return op.results[0]
