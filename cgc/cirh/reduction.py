"""Reductions, running sums and products, order statistics and norms."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from numpy.typing import DTypeLike
from xdsl.dialects.builtin import StringAttr
from xdsl.ir import SSAValue
from xdsl.irdl import irdl_op_definition, operand_def, prop_def, result_def, var_operand_def

from cgc.cirh.base import (
    BOOLEAN,
    FALSE,
    INT,
    INTS,
    BoolParameter,
    CirhOp,
    IntParameter,
    IntsParameter,
    TextParameter,
    Value,
    bool_attr,
    int_attr,
    ints_attr,
    operand_type,
    text_attr,
)
from cgc.cirh.traits import OpTraits, Order, Work, mixes
from cgc.cirh.types import (
    BOOL,
    FLOATS,
    INTEGERS,
    NUMBERS,
    ElementType,
    Tensor,
    tensor_of,
    tensor_type,
)


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
        """Return 1: the running sum or product."""
        return 1

    def _infer_results(self) -> tuple[Tensor, ...]:
        return (self.infer(tensor_of(self.x), self.axis),)


@irdl_op_definition
class CumSumOp(ScanOp):
    """Running sum along `axis`; `exclusive` leaves out the element itself, `reverse` runs from the end."""

    name = "cirh.CumSum"
    TRAITS: ClassVar[OpTraits] = mixes()


@irdl_op_definition
class CumProdOp(ScanOp):
    """Running product along `axis`, with the attributes of `CumSum`."""

    name = "cirh.CumProd"
    TRAITS: ClassVar[OpTraits] = mixes()


@irdl_op_definition
class CumMaxOp(ScanOp):
    """Running maximum along `axis`, with the attributes of `CumSum`; NaN stays where it has come."""

    name = "cirh.CumMax"
    TRAITS: ClassVar[OpTraits] = mixes()


@irdl_op_definition
class CumLogSumExpOp(ScanOp):
    """Logarithm of the running sum of exponentials along `axis`, with the attributes of `CumSum`."""

    name = "cirh.CumLogSumExp"
    TRAITS: ClassVar[OpTraits] = mixes(Work(simple=2, transcendental=2))

    @classmethod
    def infer(cls, x: Tensor, axis: int) -> Tensor:
        """Result type: the type of x, floats."""
        cls.require_dtype("x", x, FLOATS)
        return super().infer(x, axis)


@irdl_op_definition
class L2NormOp(CirhOp):
    """`sqrt` of the sum of all squares of all operands, in float32: the global norm of several gradients."""

    name = "cirh.L2Norm"
    TRAITS: ClassVar[OpTraits] = mixes(ends_update=True)
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
    TRAITS: ClassVar[OpTraits] = mixes(Work(stream=1, simple=1), order=Order.SORTS)
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
    TRAITS: ClassVar[OpTraits] = mixes(Work(stream=1, simple=1), order=Order.SORTS)
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


# reduce_kind -> element types it is defined for.
REDUCE_DTYPES = {
    "ADD": NUMBERS,
    "MUL": NUMBERS,
    "MAX": NUMBERS,
    "MIN": NUMBERS,
    "AND": BOOL | INTEGERS,
    "OR": BOOL | INTEGERS,
    "MEAN": FLOATS,
}


@irdl_op_definition
class ReduceOp(CirhOp):
    """Reduction over `dimensions`; an empty list reduces nothing."""

    name = "cirh.Reduce"
    TRAITS: ClassVar[OpTraits] = mixes(ends_update=True)
    x = operand_def()
    result = result_def()
    reduce_kind_attr = prop_def(StringAttr, prop_name="reduce_kind")
    dimensions_attr = prop_def(INTS, prop_name="dimensions")
    keep_dims_attr = prop_def(BOOLEAN, default_value=FALSE, prop_name="keep_dims")
    reduce_kind = TextParameter("reduce_kind")
    dimensions = IntsParameter("dimensions")
    keep_dims = BoolParameter("keep_dims")

    def __init__(
        self, x: Value, reduce_kind: str, dimensions: Sequence[int], keep_dims: bool = False
    ) -> None:
        source = operand_type(x)
        rank = len(source.get_shape())
        dimensions = sorted(dim + rank if dim < 0 else dim for dim in dimensions)
        super().__init__(
            [x],
            [self.infer(source, reduce_kind, dimensions, keep_dims)],
            {
                "reduce_kind": text_attr(reduce_kind),
                "dimensions": ints_attr(dimensions),
                "keep_dims": bool_attr(keep_dims),
            },
        )

    @classmethod
    def infer(cls, x: Tensor, reduce_kind: str, dimensions: Sequence[int], keep_dims: bool) -> Tensor:
        """Result type: x without the dimensions, or with size 1 in their place."""
        if reduce_kind not in REDUCE_DTYPES:
            cls.fail(f"reduce_kind is {reduce_kind!r}, expected one of {', '.join(REDUCE_DTYPES)}")
        cls.require_dtype("x", x, REDUCE_DTYPES[reduce_kind])
        shape = x.get_shape()
        reduced = set(dimensions)
        if list(dimensions) != sorted(reduced) or not reduced <= set(range(len(shape))):
            cls.fail(f"dimensions is {tuple(dimensions)}, expected rising dimensions of {x}")
        sizes = [
            1 if dim in reduced else size for dim, size in enumerate(shape) if keep_dims or dim not in reduced
        ]
        return tensor_type(sizes, x.element_type)

    def row_reductions(self) -> int:
        """Return 1, unless it reduces over samples only."""
        return int(any(axis > 0 for axis in self.dimensions))

    def sample_operands(self) -> Sequence[SSAValue]:
        """Return x, unless it reduces over samples."""
        return () if 0 in self.dimensions else (self.x,)

    def _infer_results(self) -> tuple[Tensor, ...]:
        return (self.infer(tensor_of(self.x), self.reduce_kind, self.dimensions, self.keep_dims),)


@irdl_op_definition
class ArgMaxOp(CirhOp):
    """Position of the first largest element along `axis`, as i64 or i32."""

    name = "cirh.ArgMax"
    TRAITS: ClassVar[OpTraits] = mixes()
    x = operand_def()
    result = result_def()
    axis_attr = prop_def(INT, prop_name="axis")
    axis = IntParameter("axis")

    def __init__(self, x: Value, axis: int, dtype: DTypeLike | ElementType = "int64") -> None:
        source = operand_type(x)
        axis = axis + len(source.get_shape()) if axis < 0 else axis
        super().__init__([x], [self.infer(source, axis, dtype)], {"axis": int_attr(axis)})

    @classmethod
    def infer(cls, x: Tensor, axis: int, dtype: DTypeLike | ElementType) -> Tensor:
        """Result type: x without dimension `axis`, of integers."""
        shape = x.get_shape()
        cls.require_dtype("x", x, NUMBERS)
        cls.require_axis(axis, len(shape))
        if shape[axis] == 0:
            cls.fail(f"dimension {axis} of {x} is empty, expected one element or more")
        result = tensor_type([*shape[:axis], *shape[axis + 1 :]], dtype)
        cls.require_dtype("result", result, frozenset({"int32", "int64"}))
        return result

    def row_reductions(self) -> int:
        """Return 1: the search for the largest element."""
        return 1

    def _infer_results(self) -> tuple[Tensor, ...]:
        return (self.infer(tensor_of(self.x), self.axis, tensor_of(self.result).element_type),)
