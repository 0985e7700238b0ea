"""Constants and other ops that make tensors: `Const`, `Arange`, `OneHot`."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
from numpy.typing import ArrayLike, DTypeLike
from xdsl.dialects.builtin import DenseIntOrFPElementsAttr
from xdsl.irdl import irdl_op_definition, prop_def, result_def, traits_def
from xdsl.parser import Parser
from xdsl.printer import Printer
from xdsl.traits import ConstantLike, Pure

from cgc.cirh.base import INT, CirhOp, IntParameter, int_attr
from cgc.cirh.dense import canonical_dense, dense_array, dense_attr, dense_splat, parse_dense, print_dense
from cgc.cirh.facts import NO_WORK, STREAM, Facts, made
from cgc.cirh.types import (
    NUMBERS,
    AnyArray,
    ElementType,
    Tensor,
    checked_tensor,
    element_count,
    element_type,
    numpy_dtype,
    tensor_of,
    tensor_type,
)


@irdl_op_definition
class ConstOp(CirhOp):
    """A constant tensor. Takes a dense attribute; `from_array` and `splat` take Python values."""

    name = "cirh.Const"
    FACTS: ClassVar[Facts] = made(NO_WORK)
    traits = traits_def(Pure(), ConstantLike())
    result = result_def()
    value = prop_def(DenseIntOrFPElementsAttr)

    def __init__(self, value: DenseIntOrFPElementsAttr) -> None:
        tensor = checked_tensor(value.type)
        super().__init__([], [tensor], {"value": canonical_dense(value)})

    @classmethod
    def from_array(cls, array: ArrayLike, dtype: DTypeLike | None = None) -> ConstOp:
        """A constant of the values of `array`; Python floats become float32 and Python ints int32."""
        return cls(dense_attr(_as_array(array, dtype)))

    @classmethod
    def splat(cls, value: float, like: Tensor) -> ConstOp:
        """A constant of type `like` with one value everywhere."""
        dtype = numpy_dtype(like.element_type)
        return cls(dense_attr(np.full(like.get_shape(), value, dtype)))

    def to_array(self) -> AnyArray:
        """The values: a read-only array that shares the attribute's memory."""
        return dense_array(self.value)

    def splat_value(self) -> Any | None:
        """The numpy scalar that every element is, bit for bit; None if elements differ or there are none."""
        return dense_splat(self.value)

    def _infer_results(self) -> tuple[Tensor, ...]:
        tensor = checked_tensor(self.value.type)
        count = len(self.value)
        if count != element_count(tensor):
            self.fail(f"value holds {count} elements, expected {element_count(tensor)} for {tensor}")
        return (tensor,)

    def print(self, printer: Printer) -> None:
        """Prints `{attributes} dense<...> : type`."""
        printer.print_op_attributes(dict(sorted(self.attributes.items())))
        printer.print_string(" ")
        print_dense(self.value, printer)

    @classmethod
    def parse(cls, parser: Parser) -> ConstOp:
        """Parses the text form; see `CirhOp.parse`."""
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
    FACTS: ClassVar[Facts] = made(STREAM)
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
