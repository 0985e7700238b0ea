"""Ops that move, repeat or pick elements."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import ClassVar

from xdsl.irdl import (
    irdl_op_definition,
    operand_def,
    prop_def,
    result_def,
    var_operand_def,
    var_result_def,
)

from cgc.cirh.base import (
    INT,
    INTS,
    CirhOp,
    IntParameter,
    IntsParameter,
    Value,
    int_attr,
    ints_attr,
    operand_type,
)
from cgc.cirh.facts import Elements, Facts, moves
from cgc.cirh.types import (
    Tensor,
    tensor_of,
    tensor_type,
)


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
class SplitOp(CirhOp):
    """x cut along `axis` into pieces of the given sizes, one result each; the inverse of `Concat`."""

    name = "cirh.Split"
    FACTS: ClassVar[Facts] = moves(Elements.MOVED)
    x = operand_def()
    pieces = var_result_def()
    axis_attr = prop_def(INT, prop_name="axis")
    sizes_attr = prop_def(INTS, prop_name="sizes")
    axis = IntParameter("axis")
    sizes = IntsParameter("sizes")

    def __init__(self, x: Value, sizes: Sequence[int], axis: int) -> None:
        source = operand_type(x)
        axis = axis + len(source.get_shape()) if axis < 0 else axis
        types = self.infer(source, sizes, axis)
        super().__init__([x], types, {"axis": int_attr(axis), "sizes": ints_attr(sizes)})

    @classmethod
    def infer(cls, x: Tensor, sizes: Sequence[int], axis: int) -> tuple[Tensor, ...]:
        """Result types: x with each of the sizes along `axis`."""
        shape = x.get_shape()
        cls.require_axis(axis, len(shape))
        if not sizes or min(sizes) < 0 or sum(sizes) != shape[axis]:
            cls.fail(f"sizes is {tuple(sizes)}, expected a sum of {shape[axis]}, dimension {axis} of {x}")
        return tuple(tensor_type([*shape[:axis], n, *shape[axis + 1 :]], x.element_type) for n in sizes)

    def _infer_results(self) -> tuple[Tensor, ...]:
        return self.infer(tensor_of(self.x), self.sizes, self.axis)
