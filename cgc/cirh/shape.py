"""Constants and ranges, and ops that move or repeat elements."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Any, ClassVar

import numpy as np
from numpy.typing import ArrayLike, DTypeLike
from xdsl.dialects.builtin import DenseIntOrFPElementsAttr
from xdsl.irdl import (
    irdl_op_definition,
    operand_def,
    prop_def,
    result_def,
    traits_def,
    var_operand_def,
    var_result_def,
)
from xdsl.parser import Parser
from xdsl.printer import Printer
from xdsl.traits import ConstantLike, Pure

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
from cgc.cirh.dense import canonical_dense, dense_array, dense_attr, dense_splat, parse_dense, print_dense
from cgc.cirh.traits import NO_WORK, STREAM, Elements, OpTraits, creates, moves
from cgc.cirh.types import (
    NUMBERS,
    AnyArray,
    ElementType,
    Tensor,
    element_count,
    element_type,
    numpy_dtype,
    require_tensor,
    tensor_of,
    tensor_type,
)


@irdl_op_definition
class ConstOp(CirhOp):
    """A constant tensor. Takes a dense attribute; `from_array` and `splat` take Python values."""

    name = "cirh.Const"
    TRAITS: ClassVar[OpTraits] = creates(NO_WORK)
    traits = traits_def(Pure(), ConstantLike())
    result = result_def()
    value = prop_def(DenseIntOrFPElementsAttr)

    def __init__(self, value: DenseIntOrFPElementsAttr) -> None:
        tensor = require_tensor(value.type)
        super().__init__([], [tensor], {"value": canonical_dense(value)})

    @classmethod
    def from_array(cls, array: ArrayLike, dtype: DTypeLike | None = None) -> ConstOp:
        """Return a constant of the values of `array`; Python floats become float32 and Python ints int32."""
        return cls(dense_attr(_as_array(array, dtype)))

    @classmethod
    def splat(cls, value: float, like: Tensor) -> ConstOp:
        """Return a constant of type `like` with one value everywhere."""
        dtype = numpy_dtype(like.element_type)
        return cls(dense_attr(np.full(like.get_shape(), value, dtype)))

    def to_array(self) -> AnyArray:
        """Return the values: a read-only array that shares the attribute's memory."""
        return dense_array(self.value)

    def splat_value(self) -> Any | None:
        """Return the scalar that all elements are, bit for bit; None if they differ or there are none."""
        return dense_splat(self.value)

    def _infer_results(self) -> tuple[Tensor, ...]:
        tensor = require_tensor(self.value.type)
        count = len(self.value)
        if count != element_count(tensor):
            self.fail(f"value holds {count} elements, expected {element_count(tensor)} for {tensor}")
        return (tensor,)

    def print(self, printer: Printer) -> None:
        """Print `{attributes} dense<...> : type`."""
        printer.print_op_attributes(dict(sorted(self.attributes.items())))
        printer.print_string(" ")
        print_dense(self.value, printer)

    @classmethod
    def parse(cls, parser: Parser) -> ConstOp:
        """Parse the text form; see `CirhOp.parse`."""
        attributes = parser.parse_optional_attr_dict()
        op = cls(parse_dense(parser))
        op.attributes.update(attributes)
        return op


def _as_array(array: ArrayLike, dtype: DTypeLike | None) -> AnyArray:
    if dtype is not None:
        return np.asarray(array, numpy_dtype(element_type(dtype)))
    if isinstance(array, np.ndarray | np.generic):
        return np.asarray(array)
    values = np.asarray(array)
    default = {"float64": np.float32, "int64": np.int32}.get(values.dtype.name)
    return values if default is None else values.astype(default)


@irdl_op_definition
class ArangeOp(CirhOp):
    """`start + step * [0, 1, ..., size - 1]`, a 1-d tensor.

    Numbers are counted in integers: the first and the last must be values of the element type, for floats
    32-bit integers.
    """

    name = "cirh.Arange"
    TRAITS: ClassVar[OpTraits] = creates(STREAM)
    result = result_def()
    start_attr = prop_def(INT, prop_name="start")
    step_attr = prop_def(INT, prop_name="step")
    start = IntParameter("start")
    step = IntParameter("step")

    def __init__(
        self, size: int, start: int = 0, step: int = 1, dtype: DTypeLike | ElementType = "int32"
    ) -> None:
        result = self.infer(tensor_type([size], dtype), start, step)
        super().__init__([], [result], {"start": int_attr(start), "step": int_attr(step)})

    @classmethod
    def infer(cls, result: Tensor, start: int, step: int) -> Tensor:
        """Result type as given: 1-d, of numbers, which hold what is counted."""
        if len(result.get_shape()) != 1:
            cls.fail(f"result type is {result}, expected rank 1")
        cls.require_dtype("result", result, NUMBERS)
        counted = numpy_dtype(result.element_type)
        limits = np.iinfo(counted.name if counted.kind in "iu" else "int32")
        (size,) = result.get_shape()
        last = start + step * (size - 1)
        if size and not (limits.min <= start <= limits.max and limits.min <= last <= limits.max):
            cls.fail(
                f"{result} counts from {start} to {last} in steps of {step}, "
                f"expected numbers from {limits.min} to {limits.max}"
            )
        return result

    def _infer_results(self) -> tuple[Tensor, ...]:
        return (self.infer(tensor_of(self.result), self.start, self.step),)


@irdl_op_definition
class ReshapeOp(CirhOp):
    """The same elements in row-major order with another shape."""

    name = "cirh.Reshape"
    TRAITS: ClassVar[OpTraits] = moves(Elements.KEPT)
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
    TRAITS: ClassVar[OpTraits] = moves(Elements.PERMUTED)
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
    TRAITS: ClassVar[OpTraits] = moves(Elements.REPEATED)
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
    """Tensors concatenated along `axis`."""

    name = "cirh.Concat"
    TRAITS: ClassVar[OpTraits] = moves(Elements.MOVED)
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
    TRAITS: ClassVar[OpTraits] = moves(Elements.MOVED)
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
    TRAITS: ClassVar[OpTraits] = moves(Elements.MOVED)
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
