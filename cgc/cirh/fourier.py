"""Discrete Fourier transforms along the last dimension. Complex numbers are pairs of tensors, re and im."""

from __future__ import annotations

from typing import ClassVar

from xdsl.irdl import irdl_op_definition, operand_def, prop_def, result_def

from cgc.cirh.base import (
    BOOLEAN,
    FALSE,
    INT,
    BoolParameter,
    CirhOp,
    IntParameter,
    Value,
    bool_attr,
    int_attr,
    operand_type,
)
from cgc.cirh.facts import Facts, Order, Work, mixes
from cgc.cirh.types import Tensor, shape_of, tensor_of, tensor_type

_FLOAT32 = frozenset({"float32"})
_BUTTERFLY = Work(simple=5, stream=1)
"""Of a complex element in each stage: a rotation is 6 operations, sum and difference 4, for two elements."""


class FourierOp(CirhOp):
    """Base of the transforms: their stages, and the checks of their operands."""

    def stages(self) -> int:
        """One for each doubling of the length."""
        length = max(shape_of(value)[-1] for value in (*self.operands, *self.results))
        return max(1, (length - 1).bit_length())

    def row_reductions(self) -> int:
        """The sums that every element of the result is."""
        return 1

    @classmethod
    def require_pair(cls, re: Tensor, im: Tensor) -> None:
        """Checks that two operands are the parts of complex numbers."""
        cls.require_rows("re", re)
        cls.require_same("im", im, "re", re)

    @classmethod
    def require_rows(cls, what: str, x: Tensor) -> None:
        """Checks for float32 and a last dimension that is not empty."""
        cls.require_dtype(what, x, _FLOAT32)
        if not x.get_shape() or not x.get_shape()[-1]:
            cls.fail(f"{what} has type {x}, expected rank 1 or more and a last dimension that is not empty")


@irdl_op_definition
class FftOp(FourierOp):
    """`sum(x[k] * exp(-2 pi i j k / n))` for every j.

    With `inverse` the exponent has the other sign, and the sum is divided by n.
    """

    name = "cirh.Fft"
    FACTS: ClassVar[Facts] = mixes(_BUTTERFLY, order=Order.STAGES)
    re = operand_def()
    im = operand_def()
    result_re = result_def()
    result_im = result_def()
    inverse_attr = prop_def(BOOLEAN, default_value=FALSE, prop_name="inverse")
    inverse = BoolParameter("inverse")

    def __init__(self, re: Value, im: Value, inverse: bool = False) -> None:
        types = self.infer(operand_type(re), operand_type(im))
        super().__init__([re, im], types, {"inverse": bool_attr(inverse)})

    @classmethod
    def infer(cls, re: Tensor, im: Tensor) -> tuple[Tensor, Tensor]:
        """Result types: those of the operands."""
        cls.require_pair(re, im)
        return re, im

    def _infer_results(self) -> tuple[Tensor, ...]:
        return self.infer(tensor_of(self.re), tensor_of(self.im))


@irdl_op_definition
class RfftOp(FourierOp):
    """The first n // 2 + 1 elements of `Fft` of n real numbers; the others are their conjugates."""

    name = "cirh.Rfft"
    FACTS: ClassVar[Facts] = mixes(Work(simple=2.5, stream=1), order=Order.STAGES)
    x = operand_def()
    result_re = result_def()
    result_im = result_def()

    def __init__(self, x: Value) -> None:
        super().__init__([x], self.infer(operand_type(x)))

    @classmethod
    def infer(cls, x: Tensor) -> tuple[Tensor, Tensor]:
        """Result types: x with n // 2 + 1 as last size, twice."""
        cls.require_rows("x", x)
        *batch, length = x.get_shape()
        half = tensor_type([*batch, length // 2 + 1], x.element_type)
        return half, half

    def _infer_results(self) -> tuple[Tensor, ...]:
        return self.infer(tensor_of(self.x))


@irdl_op_definition
class IrfftOp(FourierOp):
    """The `length` real numbers of which `Rfft` gives re and im; the imaginary part of the first is not read.

    Nor is that of the last, where `length` is even.
    """

    name = "cirh.Irfft"
    FACTS: ClassVar[Facts] = mixes(Work(simple=2.5, stream=1), order=Order.STAGES)
    re = operand_def()
    im = operand_def()
    result = result_def()
    length_attr = prop_def(INT, prop_name="length")
    length = IntParameter("length")

    def __init__(self, re: Value, im: Value, length: int) -> None:
        result = self.infer(operand_type(re), operand_type(im), length)
        super().__init__([re, im], [result], {"length": int_attr(length)})

    @classmethod
    def infer(cls, re: Tensor, im: Tensor, length: int) -> Tensor:
        """Result type: re with `length` as last size."""
        cls.require_pair(re, im)
        *batch, half = re.get_shape()
        if length < 1 or half != length // 2 + 1:
            cls.fail(f"length is {length} and re has type {re}, expected length // 2 + 1 as last size of re")
        return tensor_type([*batch, length], re.element_type)

    def _infer_results(self) -> tuple[Tensor, ...]:
        return (self.infer(tensor_of(self.re), tensor_of(self.im), self.length),)
