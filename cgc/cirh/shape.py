"""Ops that move, repeat or pick elements."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import ClassVar

from xdsl.dialects.builtin import StringAttr
from xdsl.irdl import irdl_op_definition, operand_def, prop_def, result_def, var_operand_def

from cgc.cirh.base import (
    INT,
    INTS,
    CirhOp,
    IntParameter,
    IntsParameter,
    TextParameter,
    Value,
    int_attr,
    ints_attr,
    operand_type,
)
from cgc.cirh.facts import STREAM, Elements, Facts, Order, Samples, mixes, moves
from cgc.cirh.types import INTEGERS, NUMBERS, Tensor, element_count, tensor_of, tensor_type


@irdl_op_definition
class ReshapeOp(CirhOp):
    """The same elements in row-major order with another shape."""

    name = "cirh.Reshape"
    FACTS: ClassVar[Facts] = moves(Elements.KEPT)
    x = operand_def()
    result = result_def()

    def __init__(self, x: Value, shape: Sequence[int]) -> None:
        super().__init__([x], [self.infer(operand_type(x), shape)])

    @classmethod
    def infer(cls, x: Tensor, shape: Sequence[int]) -> Tensor:
        """Result type: `shape`, of as many elements as x."""
        if math.prod(shape) != math.prod(x.get_shape()) or any(size < 0 for size in shape):
            cls.fail(
                f"cannot reshape {x} of {math.prod(x.get_shape())} elements to the shape {tuple(shape)}; "
                "sizes must be 0 or more and keep the number of elements"
            )
        return tensor_type(shape, x.element_type)

    def _infer_results(self) -> tuple[Tensor, ...]:
        return (self.infer(tensor_of(self.x), tensor_of(self.result).get_shape()),)


@irdl_op_definition
class TransposeOp(CirhOp):
    """Permuted dimensions: dimension i of the result is dimension `permutation[i]` of x."""

    name = "cirh.Transpose"
    FACTS: ClassVar[Facts] = moves(Elements.PERMUTED)
    x = operand_def()
    result = result_def()
    permutation_attr = prop_def(INTS, prop_name="permutation")
    permutation = IntsParameter("permutation")

    def __init__(self, x: Value, permutation: Sequence[int]) -> None:
        result = self.infer(operand_type(x), permutation)
        super().__init__([x], [result], {"permutation": ints_attr(permutation)})

    @classmethod
    def infer(cls, x: Tensor, permutation: Sequence[int]) -> Tensor:
        """Result type: the permuted shape of x."""
        shape = x.get_shape()
        if sorted(permutation) != list(range(len(shape))):
            cls.fail(f"permutation is {tuple(permutation)}, expected each of 0 to {len(shape) - 1} once")
        return tensor_type([shape[dim] for dim in permutation], x.element_type)

    def _infer_results(self) -> tuple[Tensor, ...]:
        return (self.infer(tensor_of(self.x), self.permutation),)


@irdl_op_definition
class BroadcastInDimOp(CirhOp):
    """Repeats x: dimension i of x becomes dimension `broadcast_dimensions[i]` of the result."""

    name = "cirh.BroadcastInDim"
    FACTS: ClassVar[Facts] = moves(Elements.REPEATED)
    x = operand_def()
    result = result_def()
    broadcast_dimensions_attr = prop_def(INTS, prop_name="broadcast_dimensions")
    broadcast_dimensions = IntsParameter("broadcast_dimensions")

    def __init__(self, x: Value, shape: Sequence[int], broadcast_dimensions: Sequence[int]) -> None:
        result = self.infer(operand_type(x), shape, broadcast_dimensions)
        super().__init__([x], [result], {"broadcast_dimensions": ints_attr(broadcast_dimensions)})

    @classmethod
    def infer(cls, x: Tensor, shape: Sequence[int], broadcast_dimensions: Sequence[int]) -> Tensor:
        """Result type: `shape`; every size of x is 1 or that of its dimension of the result."""
        source = x.get_shape()
        dims = tuple(broadcast_dimensions)
        rising = all(low < high for low, high in pairwise(dims))
        in_range = all(0 <= dim < len(shape) for dim in dims)
        if len(dims) != len(source) or not rising or not in_range:
            cls.fail(
                f"broadcast_dimensions is {dims}, expected {len(source)} rising dimensions "
                f"of a result of rank {len(shape)}"
            )
        for index, dim in enumerate(dims):
            if source[index] not in (1, shape[dim]):
                cls.fail(
                    f"dimension {index} of {x} has size {source[index]}, "
                    f"expected 1 or {shape[dim]}, the size of dimension {dim} of the result"
                )
        return tensor_type(shape, x.element_type)

    def _infer_results(self) -> tuple[Tensor, ...]:
        shape = tensor_of(self.result).get_shape()
        return (self.infer(tensor_of(self.x), shape, self.broadcast_dimensions),)


@irdl_op_definition
class ConcatOp(CirhOp):
    """Tensors one after the other along `axis`."""

    name = "cirh.Concat"
    FACTS: ClassVar[Facts] = moves(Elements.MOVED)
    xs = var_operand_def()
    result = result_def()
    axis_attr = prop_def(INT, prop_name="axis")
    axis = IntParameter("axis")

    def __init__(self, xs: Sequence[Value], axis: int) -> None:
        types = [operand_type(x) for x in xs]
        axis = axis + len(types[0].get_shape()) if axis < 0 and types else axis
        super().__init__(xs, [self.infer(types, axis)], {"axis": int_attr(axis)})

    @classmethod
    def infer(cls, xs: Sequence[Tensor], axis: int) -> Tensor:
        """Result type: sizes along `axis` added up; everything else must agree."""
        if not xs:
            cls.fail("got no operands, expected one or more")
        first = xs[0].get_shape()
        cls.require_axis(axis, len(first))
        for index, x in enumerate(xs):
            shape = x.get_shape()
            rest = shape[:axis] + shape[axis + 1 :]
            same_rest = len(shape) == len(first) and rest == first[:axis] + first[axis + 1 :]
            if not same_rest or x.element_type != xs[0].element_type:
                cls.fail(
                    f"operand {index} has type {x}, expected {xs[0]} but for the size of dimension {axis}"
                )
        total = sum(x.get_shape()[axis] for x in xs)
        return tensor_type([*first[:axis], total, *first[axis + 1 :]], xs[0].element_type)

    def _infer_results(self) -> tuple[Tensor, ...]:
        return (self.infer([tensor_of(x) for x in self.xs], self.axis),)


@irdl_op_definition
class SliceOp(CirhOp):
    """`x[start:limit:stride]` in every dimension; strides are positive."""

    name = "cirh.Slice"
    FACTS: ClassVar[Facts] = moves(Elements.MOVED)
    x = operand_def()
    result = result_def()
    start_indices_attr = prop_def(INTS, prop_name="start_indices")
    limit_indices_attr = prop_def(INTS, prop_name="limit_indices")
    strides_attr = prop_def(INTS, prop_name="strides")
    start_indices = IntsParameter("start_indices")
    limit_indices = IntsParameter("limit_indices")
    strides = IntsParameter("strides")

    def __init__(
        self,
        x: Value,
        start_indices: Sequence[int],
        limit_indices: Sequence[int],
        strides: Sequence[int] | None = None,
    ) -> None:
        strides = [1] * len(start_indices) if strides is None else strides
        result = self.infer(operand_type(x), start_indices, limit_indices, strides)
        super().__init__(
            [x],
            [result],
            {
                "start_indices": ints_attr(start_indices),
                "limit_indices": ints_attr(limit_indices),
                "strides": ints_attr(strides),
            },
        )

    @classmethod
    def infer(
        cls, x: Tensor, start_indices: Sequence[int], limit_indices: Sequence[int], strides: Sequence[int]
    ) -> Tensor:
        """Result type: `ceil((limit - start) / stride)` in every dimension."""
        shape = x.get_shape()
        if {len(start_indices), len(limit_indices), len(strides)} != {len(shape)}:
            cls.fail(
                f"got {len(start_indices)} start_indices, {len(limit_indices)} limit_indices and "
                f"{len(strides)} strides, expected {len(shape)} of each for {x}"
            )
        sizes = []
        for dim, (size, start, limit, stride) in enumerate(
            zip(shape, start_indices, limit_indices, strides, strict=True)
        ):
            if not 0 <= start <= limit <= size or stride < 1:
                cls.fail(
                    f"dimension {dim} has start {start}, limit {limit}, stride {stride}; "
                    f"expected 0 <= start <= limit <= {size} and a stride of 1 or more"
                )
            sizes.append(-(-(limit - start) // stride))
        return tensor_type(sizes, x.element_type)

    def _infer_results(self) -> tuple[Tensor, ...]:
        return (self.infer(tensor_of(self.x), self.start_indices, self.limit_indices, self.strides),)


@irdl_op_definition
class PadOp(CirhOp):
    """x with `low[i]` and `high[i]` elements of `value` before and after dimension i."""

    name = "cirh.pad"
    FACTS: ClassVar[Facts] = moves(Elements.MOVED)
    x = operand_def()
    value = operand_def()
    result = result_def()
    low_attr = prop_def(INTS, prop_name="low")
    high_attr = prop_def(INTS, prop_name="high")
    low = IntsParameter("low")
    high = IntsParameter("high")

    def __init__(self, x: Value, value: Value, low: Sequence[int], high: Sequence[int]) -> None:
        result = self.infer(operand_type(x), operand_type(value), low, high)
        super().__init__([x, value], [result], {"low": ints_attr(low), "high": ints_attr(high)})

    @classmethod
    def infer(cls, x: Tensor, value: Tensor, low: Sequence[int], high: Sequence[int]) -> Tensor:
        """Result type: every size grown by its low and high padding."""
        cls.require_scalar("value", value, x)
        shape = x.get_shape()
        if len(low) != len(shape) or len(high) != len(shape) or min(*low, *high, 0, 0) < 0:
            cls.fail(
                f"low is {tuple(low)} and high {tuple(high)}, expected {len(shape)} sizes of 0 or more each"
            )
        sizes = [before + size + after for before, size, after in zip(low, shape, high, strict=True)]
        return tensor_type(sizes, x.element_type)

    def _infer_results(self) -> tuple[Tensor, ...]:
        return (self.infer(tensor_of(self.x), tensor_of(self.value), self.low, self.high),)


@irdl_op_definition
class GatherOp(CirhOp):
    """Slices of x along `axis` picked by integer indices, as `tf.gather`; indices must be in range."""

    name = "cirh.Gather"
    FACTS: ClassVar[Facts] = moves(Elements.LOOKED_UP)
    x = operand_def()
    indices = operand_def()
    result = result_def()
    axis_attr = prop_def(INT, prop_name="axis")
    axis = IntParameter("axis")

    def __init__(self, x: Value, indices: Value, axis: int = 0) -> None:
        source = operand_type(x)
        axis = axis + len(source.get_shape()) if axis < 0 else axis
        super().__init__(
            [x, indices], [self.infer(source, operand_type(indices), axis)], {"axis": int_attr(axis)}
        )

    @classmethod
    def infer(cls, x: Tensor, indices: Tensor, axis: int) -> Tensor:
        """Result type: the shape of x with dimension `axis` replaced by the shape of indices."""
        cls.require_dtype("indices", indices, INTEGERS)
        shape = x.get_shape()
        cls.require_axis(axis, len(shape))
        result = tensor_type([*shape[:axis], *indices.get_shape(), *shape[axis + 1 :]], x.element_type)
        if not shape[axis] and element_count(result):
            cls.fail(f"x has type {x}, expected elements to pick along dimension {axis}")
        return result

    def _infer_results(self) -> tuple[Tensor, ...]:
        return (self.infer(tensor_of(self.x), tensor_of(self.indices), self.axis),)


@irdl_op_definition
class ScatterNdOp(CirhOp):
    """Rows of updates combined into a zero tensor at the rows that indices name.

    Rows with an index out of range are dropped, as `UnsortedSegmentSum` does. The gradient of an embedding.
    """

    name = "cirh.ScatterNd"
    FACTS: ClassVar[Facts] = mixes(STREAM, samples=Samples.SUMMED, ends_update=True, order=Order.SCATTERS)
    indices = operand_def()
    updates = operand_def()
    result = result_def()
    reduce_kind_attr = prop_def(StringAttr, prop_name="reduce_kind")
    reduce_kind = TextParameter("reduce_kind")

    def __init__(
        self, indices: Value, updates: Value, shape: Sequence[int], reduce_kind: str = "ADD"
    ) -> None:
        result = self.infer(operand_type(indices), operand_type(updates), shape, reduce_kind)
        super().__init__([indices, updates], [result], {"reduce_kind": StringAttr(reduce_kind)})

    @classmethod
    def infer(cls, indices: Tensor, updates: Tensor, shape: Sequence[int], reduce_kind: str) -> Tensor:
        """Result type: `shape`, whose dimensions after the first are those of updates."""
        cls.require_dtype("indices", indices, INTEGERS)
        cls.require_dtype("updates", updates, NUMBERS)
        if reduce_kind != "ADD":
            cls.fail(f"reduce_kind is {reduce_kind!r}, expected 'ADD'")
        rows = indices.get_shape()
        if len(rows) != 1 or updates.get_shape()[:1] != rows:
            cls.fail(f"indices has type {indices} and updates {updates}, expected [N] and [N, ...]")
        if not shape or tuple(shape[1:]) != updates.get_shape()[1:]:
            cls.fail(f"result shape is {tuple(shape)}, expected (rows, *{updates.get_shape()[1:]})")
        return tensor_type(shape, updates.element_type)

    def _infer_results(self) -> tuple[Tensor, ...]:
        shape = tensor_of(self.result).get_shape()
        return (self.infer(tensor_of(self.indices), tensor_of(self.updates), shape, self.reduce_kind),)
