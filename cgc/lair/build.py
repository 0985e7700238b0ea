"""Builders for LAIR functions: scalar arithmetic of loop bodies, tensors, and loop nests."""

from __future__ import annotations

import math as python_math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from xdsl.dialects import arith, math, tensor
from xdsl.dialects.arith import ConstantOp
from xdsl.dialects.builtin import AffineMapAttr, FloatAttr, IndexType, IntegerAttr, IntegerType
from xdsl.dialects.func import CallOp
from xdsl.dialects.linalg.ops import FillOp, IndexOp, YieldOp
from xdsl.dialects.tensor import ExtractOp
from xdsl.ir import Block, Operation, Region, SSAValue
from xdsl.ir.affine import (
    AffineBinaryOpExpr,
    AffineBinaryOpKind,
    AffineConstantExpr,
    AffineDimExpr,
    AffineExpr,
    AffineMap,
)

from cgc.cirh.types import ElementType, Tensor, element_type, numpy_dtype, shape_of, tensor_of, tensor_type
from cgc.lair.dialect import PARALLEL, REDUCTION, GenericOp
from cs_toolkit.step import device_dtype

FLOAT_NAMES = frozenset({"float32", "float16", "bfloat16"})
_BinaryOp: TypeAlias = Callable[[SSAValue, SSAValue], Operation]


def scalar_type(dtype: str) -> ElementType:
    """Return the LAIR type of a device type; its integers are signless."""
    if dtype in ("int16", "uint16"):
        return IntegerType(16)  # only for bits: CIRH has no such tensors
    element = element_type(dtype)
    return IntegerType(element.width.data) if isinstance(element, IntegerType) else element


def lair_tensor(shape: Sequence[int], dtype: str) -> Tensor:
    """Return a tensor type of LAIR."""
    return tensor_type(shape, scalar_type(dtype))


def dtype_of(tensor: Tensor) -> str:
    """Return the device type of a CIRH tensor, such as "int32" for "int64"."""
    return device_dtype(numpy_dtype(tensor.element_type).name)


@dataclass(frozen=True, eq=False)
class Scalar:
    """A value in a loop body; Python operators on it add ops of `arith` and `math`.

    Attributes:
        block: the body that ops are added to.
        value: the SSA value.
        dtype: the numpy name of its device type (which distinguishes unsigned from signed), or "index".
    """

    block: Block
    value: SSAValue
    dtype: str

    @property
    def is_float(self) -> bool:
        """True for a floating-point type."""
        return self.dtype in FLOAT_NAMES

    @property
    def is_unsigned(self) -> bool:
        """True for an unsigned integer or a bool."""
        return self.dtype.startswith("u") or self.dtype == "bool"

    def constant(self, number: float) -> Scalar:
        """Return a constant of this scalar's type."""
        return constant(self.block, number, self.dtype)

    def _append(self, op: Operation, dtype: str | None = None) -> Scalar:
        self.block.add_op(op)
        return Scalar(self.block, op.results[0], dtype or self.dtype)

    def _with(self, other: Scalar | float) -> Scalar:
        return other if isinstance(other, Scalar) else self.constant(other)

    def _binary(self, name: str, other: Scalar | float) -> Scalar:
        kind = "float" if self.is_float else "unsigned" if self.is_unsigned else "signed"
        return self._append(_BINARY[name][kind](self.value, self._with(other).value))

    def __add__(self, other: Scalar | float) -> Scalar:
        return self._binary("add", other)

    def __sub__(self, other: Scalar | float) -> Scalar:
        return self._binary("sub", other)

    def __mul__(self, other: Scalar | float) -> Scalar:
        return self._binary("mul", other)

    def __truediv__(self, other: Scalar | float) -> Scalar:
        return self._binary("div", other)

    def truncating_divide(self, other: Scalar) -> Scalar:
        """Divide, rounding integers towards zero."""
        if self.is_float or self.is_unsigned:
            return self / other
        return self._append(arith.DivSIOp(self.value, other.value))

    def shift(self, kind: str, other: Scalar) -> Scalar:
        """Shift the bits `left`, `right_arithmetic` or `right_logical`."""
        return self._append(_SHIFTS[kind](self.value, other.value))

    def __neg__(self) -> Scalar:
        return self._append(arith.NegfOp(self.value)) if self.is_float else self.constant(0) - self

    def remainder(self, other: Scalar) -> Scalar:
        """Compute the remainder with the sign of this scalar, as C's `%` and `fmod`."""
        if not self.is_float:
            return self._binary("rem", other)
        # xDSL has no op for the remainder of floats.
        call = CallOp(FMOD[self.dtype], [self.value, other.value], [self.value.type])
        return self._append(call)

    def max(self, other: Scalar | float) -> Scalar:
        """Return the larger one; NaN if either is."""
        return self._binary("max", other)

    def min(self, other: Scalar | float) -> Scalar:
        """Return the smaller one; NaN if either is."""
        return self._binary("min", other)

    def __and__(self, other: Scalar | float) -> Scalar:
        return self._binary("and", other)

    def __or__(self, other: Scalar | float) -> Scalar:
        return self._binary("or", other)

    def __xor__(self, other: Scalar | float) -> Scalar:
        return self._binary("xor", other)

    def compare(self, direction: str, other: Scalar | float) -> Scalar:
        """Return the bool of an EQ, NE, LT, LE, GT or GE comparison; for NaN, only NE is true."""
        right = self._with(other)
        lower = direction.lower()
        if self.is_float:
            predicate = "une" if direction == "NE" else f"o{lower}"
            return self._append(arith.CmpfOp(self.value, right.value, predicate), "bool")
        plain = direction in ("EQ", "NE")
        predicate = lower if plain else ("u" if self.is_unsigned else "s") + lower
        return self._append(arith.CmpiOp(self.value, right.value, predicate), "bool")

    def is_nan(self) -> Scalar:
        """Return a bool that is true for NaN; only for floats."""
        return self._append(arith.CmpfOp(self.value, self.value, "uno"), "bool")

    def select(self, on_true: Scalar | float, on_false: Scalar | float) -> Scalar:
        """Return `on_true` if this bool is true, else `on_false`; at least one of the two is a `Scalar`."""
        known = on_true if isinstance(on_true, Scalar) else on_false
        if not isinstance(known, Scalar):
            raise TypeError("select needs a scalar for the type of its result")
        left, right = known._with(on_true), known._with(on_false)
        return self._append(arith.SelectOp(self.value, left.value, right.value), known.dtype)

    def apply(self, name: str, *others: Scalar) -> Scalar:
        """Apply a function of `math` by its name: "exp", "tanh", "atan2" ..."""
        return self._append(_FUNCTIONS[name](self.value, *(other.value for other in others)))

    def abs(self) -> Scalar:
        """Return the absolute value."""
        if self.is_unsigned:
            return self
        return self._append((math.AbsFOp if self.is_float else math.AbsIOp)(self.value))

    def to(self, dtype: str) -> Scalar:
        """Convert to a type: floats to integers by truncation, any type to bool by `!= 0`."""
        if dtype == self.dtype:
            return self
        if dtype == "bool":
            return self.compare("NE", 0)
        if self.dtype == "index" or dtype == "index":
            return self._index_cast(dtype)
        if self.is_float:
            return self._float_to(dtype)
        return self._integer_to(dtype)

    def bits_as(self, dtype: str) -> Scalar:
        """Reinterpret the bits as another type of the same width."""
        return self._append(arith.BitcastOp(self.value, scalar_type(dtype)), dtype)

    def _index_cast(self, dtype: str) -> Scalar:
        if dtype == "index":
            wide = self.to("int32") if self.dtype == "bool" else self
            return self._append(arith.IndexCastOp(wide.value, IndexType()), "index")
        if dtype in FLOAT_NAMES:
            return self._index_cast("int32").to(dtype)
        return self._append(arith.IndexCastOp(self.value, scalar_type(dtype)), dtype)

    def _float_to(self, dtype: str) -> Scalar:
        """Convert a float; one 16-bit format is converted to the other through float32."""
        target = scalar_type(dtype)
        if isinstance(target, IntegerType):
            op = arith.FPToUIOp if dtype.startswith("u") else arith.FPToSIOp
            return self._append(op(self.value, target), dtype)
        if dtype == "float32":
            return self._append(arith.ExtFOp(self.value, target), dtype)
        if self.dtype == "float32":
            return self._append(arith.TruncFOp(self.value, target), dtype)
        return self.to("float32").to(dtype)

    def _integer_to(self, dtype: str) -> Scalar:
        """Convert an integer; equal widths share the value."""
        target = scalar_type(dtype)
        if not isinstance(target, IntegerType):
            op = arith.UIToFPOp if self.is_unsigned else arith.SIToFPOp
            return self._append(op(self.value, target), dtype)
        width, target_width = _width(self.dtype), target.width.data
        if width == target_width:
            return Scalar(self.block, self.value, dtype)
        if width > target_width:
            return self._append(arith.TruncIOp(self.value, target), dtype)
        extend = arith.ExtUIOp if self.is_unsigned else arith.ExtSIOp
        return self._append(extend(self.value, target), dtype)


def constant(block: Block, number: float, dtype: str) -> Scalar:
    """Add a constant to a body."""
    op = arith.ConstantOp(constant_attr(number, dtype))
    block.add_op(op)
    return Scalar(block, op.result, dtype)


def constant_attr(number: float, dtype: str) -> FloatAttr | IntegerAttr:
    """Return a number as an attribute; unsigned integers become the signed ones of equal bits."""
    if dtype == "index":
        return IntegerAttr(int(number), IndexType())
    target = scalar_type(dtype)
    if not isinstance(target, IntegerType):
        return FloatAttr(float(np.asarray(number, numpy_dtype(target))), target)
    width = target.width.data
    bits = int(number) & ((1 << width) - 1)
    signed = bits - (1 << width) if width > 1 and bits >> (width - 1) else bits
    return IntegerAttr(signed, target)


def loop_index(block: Block, dimension: int) -> Scalar:
    """Return the iteration number of a loop of the enclosing `linalg.generic`."""
    op = IndexOp(dimension)
    block.add_op(op)
    return Scalar(block, op.result, "index")


def affine_index(block: Block, expr: AffineExpr) -> Scalar:
    """Compute an affine expression of the loop indices."""
    if isinstance(expr, AffineDimExpr):
        return loop_index(block, expr.position)
    if isinstance(expr, AffineConstantExpr):
        return constant(block, expr.value, "index")
    assert isinstance(expr, AffineBinaryOpExpr)
    left, right = affine_index(block, expr.lhs), affine_index(block, expr.rhs)
    if expr.kind is AffineBinaryOpKind.Add:
        return left + right
    if expr.kind is AffineBinaryOpKind.Mul:
        return left * right
    if expr.kind is AffineBinaryOpKind.FloorDiv:
        return left / right
    return left - (left / right) * right


def lowest(dtype: str) -> float:
    """Return the smallest value of a type, minus infinity for floats."""
    if dtype in FLOAT_NAMES:
        return -python_math.inf
    return 0 if dtype == "bool" else int(np.iinfo(dtype).min)


def highest(dtype: str) -> float:
    """Return the largest value of a type, infinity for floats."""
    if dtype in FLOAT_NAMES:
        return python_math.inf
    return 1 if dtype == "bool" else int(np.iinfo(dtype).max)


# Names of the functions that compute the remainder of two floats.
FMOD = {"float32": "fmod_f32", "float16": "fmod_f16", "bfloat16": "fmod_bf16"}


def _width(dtype: str) -> int:
    target = scalar_type(dtype)
    assert isinstance(target, IntegerType)
    return target.width.data


def _kinds(floating: _BinaryOp, signed: _BinaryOp, unsigned: _BinaryOp) -> dict[str, _BinaryOp]:
    return {"float": floating, "signed": signed, "unsigned": unsigned}


_BINARY: dict[str, dict[str, _BinaryOp]] = {
    "add": _kinds(arith.AddfOp, arith.AddiOp, arith.AddiOp),
    "sub": _kinds(arith.SubfOp, arith.SubiOp, arith.SubiOp),
    "mul": _kinds(arith.MulfOp, arith.MuliOp, arith.MuliOp),
    "div": _kinds(arith.DivfOp, arith.FloorDivSIOp, arith.DivUIOp),
    "rem": _kinds(arith.RemSIOp, arith.RemSIOp, arith.RemUIOp),
    "max": _kinds(arith.MaximumfOp, arith.MaxSIOp, arith.MaxUIOp),
    "min": _kinds(arith.MinimumfOp, arith.MinSIOp, arith.MinUIOp),
    "and": _kinds(arith.AndIOp, arith.AndIOp, arith.AndIOp),
    "or": _kinds(arith.OrIOp, arith.OrIOp, arith.OrIOp),
    "xor": _kinds(arith.XOrIOp, arith.XOrIOp, arith.XOrIOp),
}

_SHIFTS: dict[str, _BinaryOp] = {
    "left": arith.ShLIOp,
    "right_arithmetic": arith.ShRSIOp,
    "right_logical": arith.ShRUIOp,
}

_FUNCTIONS: dict[str, Callable[..., Operation]] = {
    "exp": math.ExpOp,
    "expm1": math.ExpM1Op,
    "log": math.LogOp,
    "log1p": math.Log1pOp,
    "sqrt": math.SqrtOp,
    "rsqrt": math.RsqrtOp,
    "sin": math.SinOp,
    "cos": math.CosOp,
    "tanh": math.TanhOp,
    "erf": math.ErfOp,
    "floor": math.FloorOp,
    "ceil": math.CeilOp,
    "round": math.RoundEvenOp,
    "atan2": math.Atan2Op,
    "powf": math.PowFOp,
    "ipowi": math.IPowIOp,
}

# Returns the results of an iteration from the elements of the inputs, then the running values.
Body = Callable[..., Scalar | Sequence[Scalar]]


@dataclass(frozen=True, eq=False)
class Array:
    """A tensor of a function, with its device type, which distinguishes unsigned from signed integers."""

    value: SSAValue
    dtype: str

    @property
    def shape(self) -> tuple[int, ...]:
        """Its sizes."""
        return shape_of(self.value)

    @property
    def rank(self) -> int:
        """Number of dimensions."""
        return len(self.shape)


@dataclass(frozen=True)
class IndexedArray:
    """An operand of a loop nest, and the map from iterations to its elements."""

    array: Array
    map: AffineMap


class Builder:
    """Adds ops to the body of one function."""

    def __init__(self, block: Block) -> None:
        self.block = block

    def empty(self, shape: Sequence[int], dtype: str) -> Array:
        """Return a tensor with undefined elements, to be written."""
        op = tensor.EmptyOp([], lair_tensor(shape, dtype))
        self.block.add_op(op)
        return Array(op.tensor, dtype)

    def fill(self, shape: Sequence[int], dtype: str, number: float) -> Array:
        """Return a tensor filled with one number."""
        value = ConstantOp(constant_attr(number, dtype))
        empty = self.empty(shape, dtype)
        op = FillOp([value.result], [empty.value], [empty.value.type])
        self.block.add_ops([value, op])
        return Array(op.results[0], dtype)

    def loops(
        self,
        count: int,
        carried: Sequence[int],
        reads: Sequence[IndexedArray],
        writes: Sequence[IndexedArray],
        body: Body,
    ) -> list[Array]:
        """Add a loop nest.

        Args:
            count: number of loops.
            carried: the loops that carry a running value.
            reads: inputs.
            writes: initial values of the results, and the elements that iterations write.
            body: returns one scalar for each result.
        """
        operands = [*reads, *writes]
        block = Block(arg_types=[scalar_type(operand.array.dtype) for operand in operands])
        arguments = [
            Scalar(block, argument, operand.array.dtype)
            for argument, operand in zip(block.args, operands, strict=True)
        ]
        returned = body(*arguments) if arguments else body(block)
        results = [returned] if isinstance(returned, Scalar) else list(returned)
        block.add_op(YieldOp(*(result.value for result in results)))
        op = GenericOp(
            [read.array.value for read in reads],
            [write.array.value for write in writes],
            Region(block),
            [AffineMapAttr(operand.map) for operand in operands],
            [REDUCTION if loop in carried else PARALLEL for loop in range(count)],
            [write.array.value.type for write in writes],
        )
        self.block.add_op(op)
        return [Array(value, write.array.dtype) for value, write in zip(op.results, writes, strict=True)]


def extract(block: Block, x: Array, indices: Sequence[Scalar]) -> Scalar:
    """Read an element of a tensor at indices that the body computes."""
    op = ExtractOp(x.value, [index.value for index in indices], tensor_of(x.value).element_type)
    block.add_op(op)
    return Scalar(block, op.result, x.dtype)


def out_of_range_value(dtype: str) -> float:
    """Return the element that a gather reads at an index out of range."""
    if dtype in FLOAT_NAMES:
        return python_math.nan
    return lowest(dtype) if dtype.startswith("int") else highest(dtype)
