"""Running sums and products, order statistics and norms."""

from __future__ import annotations

from typing import ClassVar

from xdsl.irdl import irdl_op_definition, operand_def, prop_def, result_def, var_operand_def

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
from cgc.cirh.types import FLOATS, NUMBERS, Tensor, tensor_of, tensor_type


class ScanOp(CirhOp):
    """Base of `Op(x) {axis, exclusive, reverse} -> result` of the type of x."""

    x = operand_def()
    result = result_def()
    axis_attr = prop_def(INT, prop_name="axis")
    exclusive_attr = prop_def(BOOLEAN, default_value=FALSE, prop_name="exclusive")
    reverse_attr = prop_def(BOOLEAN, default_value=FALSE, prop_name="reverse")
    axis = IntParameter("axis")
    exclusive = BoolParameter("exclusive")
    reverse = BoolParameter("reverse")

    def __init__(self, x: Value, axis: int, exclusive: bool = False, reverse: bool = False) -> None:
        source = operand_type(x)
        axis = axis + len(source.get_shape()) if axis < 0 else axis
        super().__init__(
            [x],
            [self.infer(source, axis)],
            {"axis": int_attr(axis), "exclusive": bool_attr(exclusive), "reverse": bool_attr(reverse)},
        )

    @classmethod
    def infer(cls, x: Tensor, axis: int) -> Tensor:
        """Result type: the type of x."""
        cls.require_dtype("x", x, NUMBERS)
        cls.require_axis(axis, len(x.get_shape()))
        return x

    def row_reductions(self) -> int:
        """The sum or product that runs along."""
        return 1

    def _infer_results(self) -> tuple[Tensor, ...]:
        return (self.infer(tensor_of(self.x), self.axis),)


@irdl_op_definition
class CumSumOp(ScanOp):
    """Running sum along `axis`; `exclusive` leaves out the element itself, `reverse` runs from the end."""

    name = "cirh.CumSum"
    FACTS: ClassVar[Facts] = mixes()


@irdl_op_definition
class CumProdOp(ScanOp):
    """Running product along `axis`, with the attributes of `CumSum`."""

    name = "cirh.CumProd"
    FACTS: ClassVar[Facts] = mixes()


@irdl_op_definition
class L2NormOp(CirhOp):
    """`sqrt` of the sum of all squares of all operands, in float32: the global norm of several gradients."""

    name = "cirh.L2Norm"
    FACTS: ClassVar[Facts] = mixes(ends_update=True)
    xs = var_operand_def()
    result = result_def()

    def __init__(self, *xs: Value) -> None:
        super().__init__(xs, [self.infer(*map(operand_type, xs))])

    @classmethod
    def infer(cls, *xs: Tensor) -> Tensor:
        """Result type: rank 0, f32."""
        if not xs:
            cls.fail("got no operands, expected one or more")
        for index, x in enumerate(xs):
            cls.require_dtype(f"operand {index}", x, FLOATS)
        return tensor_type([], "float32")

    def _infer_results(self) -> tuple[Tensor, ...]:
        return (self.infer(*map(tensor_of, self.xs)),)


@irdl_op_definition
class NthOrderStatisticOp(CirhOp):
    """The n-th smallest element along the last dimension, from 0; with `reverse` the n-th largest."""

    name = "cirh.NthOrderStatistic"
    FACTS: ClassVar[Facts] = mixes(Work(stream=1, simple=1), order=Order.SORTS)
    x = operand_def()
    result = result_def()
    n_attr = prop_def(INT, prop_name="n")
    reverse_attr = prop_def(BOOLEAN, default_value=FALSE, prop_name="reverse")
    n = IntParameter("n")
    reverse = BoolParameter("reverse")

    def __init__(self, x: Value, n: int, reverse: bool = False) -> None:
        result = self.infer(operand_type(x), n)
        super().__init__([x], [result], {"n": int_attr(n), "reverse": bool_attr(reverse)})

    @classmethod
    def infer(cls, x: Tensor, n: int) -> Tensor:
        """Result type: x without its last dimension."""
        cls.require_dtype("x", x, NUMBERS)
        shape = x.get_shape()
        if not shape or not 0 <= n < shape[-1]:
            cls.fail(f"n is {n} and x has type {x}, expected rank 1 or more and 0 <= n < its last size")
        return tensor_type(shape[:-1], x.element_type)

    def _infer_results(self) -> tuple[Tensor, ...]:
        return (self.infer(tensor_of(self.x), self.n),)


@irdl_op_definition
class TopKOp(CirhOp):
    """The k largest elements along the last dimension, largest first, and their positions as i32.

    Of equal elements the first comes first.
    """

    name = "cirh.TopK"
    FACTS: ClassVar[Facts] = mixes(Work(stream=1, simple=1), order=Order.SORTS)
    x = operand_def()
    values = result_def()
    indices = result_def()
    k_attr = prop_def(INT, prop_name="k")
    k = IntParameter("k")

    def __init__(self, x: Value, k: int) -> None:
        super().__init__([x], self.infer(operand_type(x), k), {"k": int_attr(k)})

    @classmethod
    def infer(cls, x: Tensor, k: int) -> tuple[Tensor, Tensor]:
        """Result types: x with k as last size, and integers of that shape."""
        cls.require_dtype("x", x, NUMBERS)
        shape = x.get_shape()
        if not shape or not 0 <= k <= shape[-1]:
            cls.fail(f"k is {k} and x has type {x}, expected rank 1 or more and 0 <= k <= its last size")
        return tensor_type([*shape[:-1], k], x.element_type), tensor_type([*shape[:-1], k], "int32")

    def _infer_results(self) -> tuple[Tensor, ...]:
        return self.infer(tensor_of(self.x), self.k)
