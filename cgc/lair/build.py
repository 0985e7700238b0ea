"""Build functions of LAIR: scalar arithmetic of loop bodies, tensors, and loops over them."""

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
from xdsl.ir.affine import AffineExpr, AffineMap

from cgc.cirh.base import CirhOp
from cgc.cirh.types import ElementType, Tensor, element_type, numpy_dtype, shape_of, tensor_of, tensor_type
from cgc.lair.affine import affine_map, dim, identity, partial
from cgc.lair.dialect import PARALLEL, REDUCTION, GenericOp
from cs_toolkit.step import device_dtype

FLOAT_NAMES = frozenset({"float32", "float16", "bfloat16"})
_MakeBinary: TypeAlias = Callable[[SSAValue, SSAValue], Operation]


def scalar_type(dtype: str) -> ElementType:
    """The type of LAIR that holds a device type: signless where CIRH has unsigned integers."""
    if dtype == "int16":
        return IntegerType(16)  # of bits alone: CIRH has no such tensors
    element = element_type(dtype)
    return IntegerType(element.width.data) if isinstance(element, IntegerType) else element


def lair_tensor(shape: Sequence[int], dtype: str) -> Tensor:
    """A tensor type of LAIR."""
    return tensor_type(shape, scalar_type(dtype))


def dtype_of(tensor: Tensor) -> str:
    """The device type of a tensor of CIRH: "int64" is "int32"."""
    return device_dtype(numpy_dtype(tensor.element_type).name)


@dataclass(frozen=True, eq=False)
class Scalar:
    """A value of a loop body.

    Attributes:
        block: the body that ops are added to.
        value: the SSA value.
        dtype: the numpy name of its device type (it tells unsigned from signed), or "index".
    """

    block: Block
    value: SSAValue
    dtype: str

    @property
    def is_float(self) -> bool:
        """Whether it is of a floating-point type."""
        return self.dtype in FLOAT_NAMES

    @property
    def is_unsigned(self) -> bool:
        """Whether it is an unsigned integer or a bool."""
        return self.dtype.startswith("u") or self.dtype == "bool"

    def constant(self, number: float) -> Scalar:
        """A number of this scalar's type."""
        return constant(self.block, number, self.dtype)

    def _made(self, op: Operation, dtype: str | None = None) -> Scalar:
        self.block.add_op(op)
        return Scalar(self.block, op.results[0], dtype or self.dtype)

    def _with(self, other: Scalar | float) -> Scalar:
        return other if isinstance(other, Scalar) else self.constant(other)

    def _binary(self, name: str, other: Scalar | float) -> Scalar:
        kind = "float" if self.is_float else "unsigned" if self.is_unsigned else "signed"
        return self._made(_BINARY[name][kind](self.value, self._with(other).value))

    def __add__(self, other: Scalar | float) -> Scalar:
        return self._binary("add", other)

    def __sub__(self, other: Scalar | float) -> Scalar:
        return self._binary("sub", other)

    def __mul__(self, other: Scalar | float) -> Scalar:
        return self._binary("mul", other)

    def __truediv__(self, other: Scalar | float) -> Scalar:
        return self._binary("div", other)

    def __neg__(self) -> Scalar:
        return self._made(arith.NegfOp(self.value)) if self.is_float else self.constant(0) - self

    def remainder(self, other: Scalar) -> Scalar:
        """The remainder with the sign of this one, as C's `%` and `fmod`.

        xDSL has no op for that of floats: it is the call of a function `FMOD[dtype]`.
        """
        if not self.is_float:
            return self._binary("rem", other)
        call = CallOp(FMOD[self.dtype], [self.value, other.value], [self.value.type])
        return self._made(call)

    def max(self, other: Scalar | float) -> Scalar:
        """The larger one; NaN where either is."""
        return self._binary("max", other)

    def min(self, other: Scalar | float) -> Scalar:
        """The smaller one; NaN where either is."""
        return self._binary("min", other)

    def __and__(self, other: Scalar | float) -> Scalar:
        return self._binary("and", other)

    def __or__(self, other: Scalar | float) -> Scalar:
        return self._binary("or", other)

    def __xor__(self, other: Scalar | float) -> Scalar:
        return self._binary("xor", other)

    def compare(self, direction: str, other: Scalar | float) -> Scalar:
        """EQ NE LT LE GT GE as a bool; with NaN only NE holds."""
        right = self._with(other)
        lower = direction.lower()
        if self.is_float:
            predicate = "une" if direction == "NE" else f"o{lower}"
            return self._made(arith.CmpfOp(self.value, right.value, predicate), "bool")
        plain = direction in ("EQ", "NE")
        predicate = lower if plain else ("u" if self.is_unsigned else "s") + lower
        return self._made(arith.CmpiOp(self.value, right.value, predicate), "bool")

    def is_nan(self) -> Scalar:
        """Whether it is NaN; only for floats."""
        return self._made(arith.CmpfOp(self.value, self.value, "uno"), "bool")

    def select(self, on_true: Scalar | float, on_false: Scalar | float) -> Scalar:
        """`on_true` where this bool holds, else `on_false`; one of the two is a scalar."""
        known = on_true if isinstance(on_true, Scalar) else on_false
        if not isinstance(known, Scalar):
            raise TypeError("select needs a scalar for the type of its result")
        left, right = known._with(on_true), known._with(on_false)
        return self._made(arith.SelectOp(self.value, left.value, right.value), known.dtype)

    def apply(self, name: str, *others: Scalar) -> Scalar:
        """A function of `math` by its name: "exp", "tanh", "atan2" ..."""
        return self._made(_FUNCTIONS[name](self.value, *(other.value for other in others)))

    def abs(self) -> Scalar:
        """The absolute value."""
        if self.is_unsigned:
            return self
        return self._made((math.AbsFOp if self.is_float else math.AbsIOp)(self.value))

    def to(self, dtype: str) -> Scalar:
        """Converted: floats to integers by dropping the fraction, anything to bool by `!= 0`."""
        if dtype == self.dtype:
            return self
        if dtype == "bool":
            return self.compare("NE", 0)
        if self.dtype == "index" or dtype == "index":
            return self._index_cast(dtype)
        if self.is_float:
            return self._float_to(dtype)
        return self._integer_to(dtype)

    def read_as(self, kind: str) -> Scalar:
        """This integer read as signed ("int") or unsigned ("uint")."""
        return Scalar(self.block, self.value, f"{kind}{_width(self.dtype)}")

    def bits_as(self, dtype: str) -> Scalar:
        """The same bits read as another type of the same width."""
        return self._made(arith.BitcastOp(self.value, scalar_type(dtype)), dtype)

    def _index_cast(self, dtype: str) -> Scalar:
        if dtype == "index":
            wide = self.to("int32") if self.dtype == "bool" else self
            return self._made(arith.IndexCastOp(wide.value, IndexType()), "index")
        if dtype in FLOAT_NAMES:
            return self._index_cast("int32").to(dtype)
        return self._made(arith.IndexCastOp(self.value, scalar_type(dtype)), dtype)

    def _float_to(self, dtype: str) -> Scalar:
        target = scalar_type(dtype)
        if isinstance(target, IntegerType):
            op = arith.FPToUIOp if dtype.startswith("u") else arith.FPToSIOp
            return self._made(op(self.value, target), dtype)
        if dtype == "float32":
            return self._made(arith.ExtFOp(self.value, target), dtype)
        if self.dtype == "float32":
            return self._made(arith.TruncFOp(self.value, target), dtype)
        return self.to("float32").to(dtype)

    def _integer_to(self, dtype: str) -> Scalar:
        target = scalar_type(dtype)
        if not isinstance(target, IntegerType):
            op = arith.UIToFPOp if self.is_unsigned else arith.SIToFPOp
            return self._made(op(self.value, target), dtype)
        have, want = _width(self.dtype), target.width.data
        if have == want:
            return Scalar(self.block, self.value, dtype)
        if have > want:
            return self._made(arith.TruncIOp(self.value, target), dtype)
        extend = arith.ExtUIOp if self.is_unsigned else arith.ExtSIOp
        return self._made(extend(self.value, target), dtype)


def constant(block: Block, number: float, dtype: str) -> Scalar:
    """A number as a value of a body."""
    op = arith.ConstantOp(constant_attr(number, dtype))
    block.add_op(op)
    return Scalar(block, op.result, dtype)


def constant_attr(number: float, dtype: str) -> FloatAttr | IntegerAttr:
    """A number as an attribute; unsigned integers by their bits."""
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
    """The iteration number of a loop of the enclosing `linalg.generic`."""
    op = IndexOp(dimension)
    block.add_op(op)
    return Scalar(block, op.result, "index")


def lowest(dtype: str) -> float:
    """The smallest value of a type, minus infinity of floats."""
    if dtype in FLOAT_NAMES:
        return -python_math.inf
    return 0 if dtype == "bool" else int(np.iinfo(dtype).min)


def highest(dtype: str) -> float:
    """The largest value of a type, infinity of floats."""
    if dtype in FLOAT_NAMES:
        return python_math.inf
    return 1 if dtype == "bool" else int(np.iinfo(dtype).max)


FMOD = {"float32": "fmod_f32", "float16": "fmod_f16", "bfloat16": "fmod_bf16"}
"""Names of the functions of two scalars that give the remainder of floats."""


def _width(dtype: str) -> int:
    target = scalar_type(dtype)
    assert isinstance(target, IntegerType)
    return target.width.data


def _kinds(floating: _MakeBinary, signed: _MakeBinary, unsigned: _MakeBinary) -> dict[str, _MakeBinary]:
    return {"float": floating, "signed": signed, "unsigned": unsigned}


_BINARY: dict[str, dict[str, _MakeBinary]] = {
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


Body = Callable[..., Scalar | Sequence[Scalar]]
"""Makes the results of a point from the elements of all operands, inputs first, then running values."""


@dataclass(frozen=True, eq=False)
class Array:
    """A tensor of a function: its value, and its device type (which tells unsigned from signed)."""

    value: SSAValue
    dtype: str

    @property
    def shape(self) -> tuple[int, ...]:
        """Its sizes."""
        return shape_of(self.value)

    @property
    def rank(self) -> int:
        """The number of its dimensions."""
        return len(self.shape)


@dataclass(frozen=True)
class Read:
    """An operand of a loop nest and the element that an iteration takes."""

    array: Array
    map: AffineMap


class Builder:
    """Adds ops to the body of one function."""

    def __init__(self, block: Block) -> None:
        self.block = block

    def empty(self, shape: Sequence[int], dtype: str) -> Array:
        """A tensor without defined elements, to be written."""
        op = tensor.EmptyOp([], lair_tensor(shape, dtype))
        self.block.add_op(op)
        return Array(op.tensor, dtype)

    def filled(self, shape: Sequence[int], dtype: str, number: float) -> Array:
        """A tensor of one number."""
        value = ConstantOp(constant_attr(number, dtype))
        empty = self.empty(shape, dtype)
        op = FillOp([value.result], [empty.value], [empty.value.type])
        self.block.add_ops([value, op])
        return Array(op.results[0], dtype)

    def filled_from(self, shape: Sequence[int], number: Array) -> Array:
        """A tensor of the number that a rank-0 tensor holds."""
        read = Read(number, affine_map(len(shape), []))
        return self.parallel(shape, [read], number.dtype, lambda element: element)

    def parallel(self, shape: Sequence[int], reads: Sequence[Read], dtype: str, body: Body) -> Array:
        """One result of `shape`; each element by itself."""
        return self.parallel_results(shape, reads, [dtype], body)[0]

    def parallel_results(
        self, shape: Sequence[int], reads: Sequence[Read], dtypes: Sequence[str], body: Body
    ) -> list[Array]:
        """Several results of `shape`."""
        writes = [Read(self.empty(shape, dtype), identity(len(shape))) for dtype in dtypes]
        return self.loops(len(shape), (), reads, writes, lambda *values: body(*values[: len(reads)]))

    def pointwise(self, arrays: Sequence[Array], dtype: str, body: Body) -> Array:
        """Elements at one place of arrays of one shape; arrays of rank 0 are read everywhere."""
        return self.pointwise_results(arrays, [dtype], body)[0]

    def pointwise_results(self, arrays: Sequence[Array], dtypes: Sequence[str], body: Body) -> list[Array]:
        """`pointwise` with several results."""
        shape = max((array.shape for array in arrays), key=len)
        reads = [
            Read(array, identity(array.rank) if array.rank else affine_map(len(shape), []))
            for array in arrays
        ]
        return self.parallel_results(shape, reads, dtypes, body)

    def reduced(
        self, array: Array, dimensions: Sequence[int], start: float, body: Body, keep_dims: bool = False
    ) -> Array:
        """`body(element, running value)` over some dimensions, from `start`."""
        kept = [d for d in range(array.rank) if d not in dimensions]
        results = [dim(d) if d in kept else 0 for d in range(array.rank) if keep_dims or d in kept]
        shape = [array.shape[d] if d in kept else 1 for d in range(array.rank) if keep_dims or d in kept]
        write = Read(self.filled(shape, array.dtype, start), affine_map(array.rank, results))
        read = Read(array, identity(array.rank))
        return self.loops(array.rank, dimensions, [read], [write], body)[0]

    def loops(
        self, count: int, carried: Sequence[int], reads: Sequence[Read], writes: Sequence[Read], body: Body
    ) -> list[Array]:
        """A loop nest.

        Args:
            count: of loops.
            carried: the loops that carry a running value.
            reads: inputs.
            writes: initial values of the results, and where an iteration writes.
            body: see `Body`; gives one scalar for each result.
        """
        operands = [*reads, *writes]
        block = Block(arg_types=[scalar_type(operand.array.dtype) for operand in operands])
        arguments = [
            Scalar(block, argument, operand.array.dtype)
            for argument, operand in zip(block.args, operands, strict=True)
        ]
        made = body(*arguments) if arguments else body(block)
        results = [made] if isinstance(made, Scalar) else list(made)
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


Rule = Callable[..., Array | Sequence[Array]]
"""(builder, op, its operands) -> its results."""


def result_dtype(op: CirhOp, index: int = 0) -> str:
    """The device type of a result."""
    return dtype_of(tensor_of(op.results[index]))


def same(element: Scalar) -> Scalar:
    """The element itself."""
    return element


def moved(builder: Builder, op: CirhOp, x: Array, results: Sequence[AffineExpr | int]) -> Array:
    """An element of the result is that of x at the place that the expressions name."""
    return moved_to(builder, shape_of(op.results[0]), x, results)


def moved_to(builder: Builder, shape: Sequence[int], x: Array, results: Sequence[AffineExpr | int]) -> Array:
    """`moved` for a result of a given shape."""
    places = partial(affine_map(len(shape), results), shape, x.shape)
    return builder.parallel(shape, [Read(x, places)], x.dtype, same)


def written(builder: Builder, part: Array, whole: Array, places: Sequence[AffineExpr]) -> Array:
    """`whole` with the elements of `part` at the places that expressions of their indices name."""
    targets = partial(affine_map(part.rank, places), part.shape, whole.shape)
    reads, writes = [Read(part, identity(part.rank))], [Read(whole, targets)]
    return builder.loops(part.rank, (), reads, writes, lambda element, _old: element)[0]


def extract(block: Block, x: Array, places: Sequence[Scalar]) -> Scalar:
    """An element of a tensor at places that the body computes."""
    op = ExtractOp(x.value, [place.value for place in places], tensor_of(x.value).element_type)
    block.add_op(op)
    return Scalar(block, op.result, x.dtype)


def missing(dtype: str) -> float:
    """What a gather out of range gives."""
    if dtype in FLOAT_NAMES:
        return python_math.nan
    return lowest(dtype) if dtype.startswith("int") else highest(dtype)


def indexed(builder: Builder, op: CirhOp, reads: Sequence[Read], body: Callable[..., Scalar]) -> Array:
    """A parallel nest over the result; `body(block, elements ..)` may use the indices of the loops."""
    shape, dtype = shape_of(op.results[0]), result_dtype(op)
    write = Read(builder.empty(shape, dtype), identity(len(shape)))
    return builder.loops(len(shape), (), reads, [write], lambda *values: body(values[-1].block, *values))[0]


def widened(builder: Builder, x: Array) -> Array:
    """float32 of 16-bit floats."""
    if x.dtype not in ("float16", "bfloat16"):
        return x
    return builder.pointwise([x], "float32", lambda element: element.to("float32"))


def narrowed(builder: Builder, x: Array, dtype: str) -> Array:
    """The inverse of `widened`."""
    return x if x.dtype == dtype else builder.pointwise([x], dtype, lambda element: element.to(dtype))


def sum_of(builder: Builder, x: Array, dimensions: Sequence[int], keep_dims: bool = False) -> Array:
    """Sum over dimensions, of float32 where x has 16 bits."""
    return builder.reduced(
        widened(builder, x), dimensions, 0, lambda element, total: total + element, keep_dims
    )


Formula = Callable[..., Scalar | Sequence[Scalar]]
"""(op, elements of its operands) -> elements of its results."""
