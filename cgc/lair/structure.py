"""What the loop nests of CIRH ops share: moves, reads by index, sums, and the types of their rules."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from xdsl.dialects.tensor import ExtractOp
from xdsl.ir import Block
from xdsl.ir.affine import AffineExpr

from cgc.cirh.base import CirhOp
from cgc.cirh.types import shape_of, tensor_of
from cgc.lair.affine import affine_map, identity, partial
from cgc.lair.build import Array, Builder, Read
from cgc.lair.scalar import FLOAT_NAMES, Scalar, dtype_of, highest, lowest

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
        return math.nan
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
