"""Matrix products and biases."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from xdsl.ir import SSAValue
from xdsl.irdl import irdl_op_definition, operand_def, prop_def, result_def

from cgc.cirh.base import (
    BOOLEAN,
    FALSE,
    INT,
    INTS,
    BoolParameter,
    CirhOp,
    IntParameter,
    IntsParameter,
    Value,
    bool_attr,
    int_attr,
    ints_attr,
    operand_type,
)
from cgc.cirh.facts import Facts, Fp16, Samples, mixes, pointwise
from cgc.cirh.types import (
    NUMBERS,
    Tensor,
    shape_of,
    tensor_of,
    tensor_type,
)


@irdl_op_definition
class MatMulOp(CirhOp):
    """Matrix product over the last two dimensions; leading (batch) dimensions of both are equal."""

    name = "cirh.MatMul"
    FACTS: ClassVar[Facts] = mixes(fp16=Fp16.STARTS, product=True, ends_update=True)
    a = operand_def()
    b = operand_def()
    result = result_def()
    transpose_a_attr = prop_def(BOOLEAN, default_value=FALSE, prop_name="transpose_a")
    transpose_b_attr = prop_def(BOOLEAN, default_value=FALSE, prop_name="transpose_b")
    transpose_a = BoolParameter("transpose_a")
    transpose_b = BoolParameter("transpose_b")

    def __init__(self, a: Value, b: Value, transpose_a: bool = False, transpose_b: bool = False) -> None:
        super().__init__(
            [a, b],
            [self.infer(operand_type(a), operand_type(b), transpose_a, transpose_b)],
            {"transpose_a": bool_attr(transpose_a), "transpose_b": bool_attr(transpose_b)},
        )

    @classmethod
    def infer(cls, a: Tensor, b: Tensor, transpose_a: bool, transpose_b: bool) -> Tensor:
        """Result type: `[batch..., rows of a, columns of b]`."""
        cls.require_dtype("a", a, NUMBERS)
        left, right = a.get_shape(), b.get_shape()
        same_batch = len(left) == len(right) >= 2 and left[:-2] == right[:-2]
        if not same_batch or a.element_type != b.element_type:
            cls.fail(
                f"a has type {a} and b {b}, expected rank 2 or more, "
                "equal leading dimensions and equal element types"
            )
        rows, inner_a = left[-2:][::-1] if transpose_a else left[-2:]
        inner_b, columns = right[-2:][::-1] if transpose_b else right[-2:]
        if inner_a != inner_b:
            cls.fail(
                f"the contracted dimension of a has size {inner_a}, expected {inner_b} as in b "
                f"(a: {a}, transpose_a = {str(transpose_a).lower()}; "
                f"b: {b}, transpose_b = {str(transpose_b).lower()})"
            )
        return tensor_type([*left[:-2], rows, columns], a.element_type)

    def sample_operands(self) -> Sequence[SSAValue]:
        """Of a product of two matrices, whose rows may be samples: a, unless it is summed over its rows."""
        if len(shape_of(self.result)) > 2:
            return self.operands
        return () if self.transpose_a else (self.a,)

    def _infer_results(self) -> tuple[Tensor, ...]:
        return (self.infer(tensor_of(self.a), tensor_of(self.b), self.transpose_a, self.transpose_b),)


@irdl_op_definition
class DotGeneralOp(CirhOp):
    """Product summed over the contracting dimensions of both sides, for each place of the batching ones.

    The result has the batching dimensions, then what is left of lhs, then what is left of rhs.
    """

    name = "cirh.DotGeneral"
    FACTS: ClassVar[Facts] = mixes(fp16=Fp16.STARTS, product=True, ends_update=True)
    lhs = operand_def()
    rhs = operand_def()
    result = result_def()
    lhs_batching_attr = prop_def(INTS, prop_name="lhs_batching_dimensions")
    lhs_contracting_attr = prop_def(INTS, prop_name="lhs_contracting_dimensions")
    rhs_batching_attr = prop_def(INTS, prop_name="rhs_batching_dimensions")
    rhs_contracting_attr = prop_def(INTS, prop_name="rhs_contracting_dimensions")
    lhs_batching_dimensions = IntsParameter("lhs_batching_dimensions")
    lhs_contracting_dimensions = IntsParameter("lhs_contracting_dimensions")
    rhs_batching_dimensions = IntsParameter("rhs_batching_dimensions")
    rhs_contracting_dimensions = IntsParameter("rhs_contracting_dimensions")

    def __init__(
        self,
        lhs: Value,
        rhs: Value,
        lhs_contracting_dimensions: Sequence[int],
        rhs_contracting_dimensions: Sequence[int],
        lhs_batching_dimensions: Sequence[int] = (),
        rhs_batching_dimensions: Sequence[int] = (),
    ) -> None:
        dimensions = {
            "lhs_batching_dimensions": lhs_batching_dimensions,
            "lhs_contracting_dimensions": lhs_contracting_dimensions,
            "rhs_batching_dimensions": rhs_batching_dimensions,
            "rhs_contracting_dimensions": rhs_contracting_dimensions,
        }
        result = self.infer(operand_type(lhs), operand_type(rhs), *dimensions.values())
        super().__init__([lhs, rhs], [result], {name: ints_attr(value) for name, value in dimensions.items()})

    @classmethod
    def infer(
        cls,
        lhs: Tensor,
        rhs: Tensor,
        lhs_batching: Sequence[int],
        lhs_contracting: Sequence[int],
        rhs_batching: Sequence[int],
        rhs_contracting: Sequence[int],
    ) -> Tensor:
        """Result type: `[batching..., rest of lhs..., rest of rhs...]`."""
        cls.require_dtype("lhs", lhs, NUMBERS)
        if lhs.element_type != rhs.element_type:
            cls.fail(f"lhs has type {lhs} and rhs {rhs}, expected equal element types")
        batch, left = cls._sizes("lhs", lhs, lhs_batching, lhs_contracting)
        _, right = cls._sizes("rhs", rhs, rhs_batching, rhs_contracting)
        left_shape, right_shape = lhs.get_shape(), rhs.get_shape()
        for what, ours, theirs in (
            ("batching", lhs_batching, rhs_batching),
            ("contracting", lhs_contracting, rhs_contracting),
        ):
            if [left_shape[dim] for dim in ours] != [right_shape[dim] for dim in theirs]:
                cls.fail(
                    f"the {what} dimensions are {tuple(ours)} of {lhs} and {tuple(theirs)} of {rhs}, "
                    "expected equal sizes in equal order"
                )
        return tensor_type([*batch, *left, *right], lhs.element_type)

    @classmethod
    def _sizes(
        cls, name: str, tensor: Tensor, batching: Sequence[int], contracting: Sequence[int]
    ) -> tuple[list[int], list[int]]:
        """Sizes of the batching dimensions, and of those that are neither batching nor contracting."""
        shape, used = tensor.get_shape(), [*batching, *contracting]
        if len(set(used)) != len(used) or not set(used) <= set(range(len(shape))):
            cls.fail(
                f"batching and contracting dimensions are {tuple(used)}, expected some of {name}: {tensor}"
            )
        return [shape[dim] for dim in batching], [n for dim, n in enumerate(shape) if dim not in used]

    def sample_operands(self) -> Sequence[SSAValue]:
        """lhs, whose first dimension is that of the result, unless it is summed; with batches both."""
        if self.lhs_batching_dimensions:
            return self.operands
        return () if 0 in self.lhs_contracting_dimensions else (self.lhs,)

    def _infer_results(self) -> tuple[Tensor, ...]:
        return (
            self.infer(
                tensor_of(self.lhs),
                tensor_of(self.rhs),
                self.lhs_batching_dimensions,
                self.lhs_contracting_dimensions,
                self.rhs_batching_dimensions,
                self.rhs_contracting_dimensions,
            ),
        )


@irdl_op_definition
class BiasAddOp(CirhOp):
    """x plus a 1-d bias along the last dimension."""

    name = "cirh.BiasAdd"
    FACTS: ClassVar[Facts] = pointwise(fp16=Fp16.FOLLOWS)
    x = operand_def()
    bias = operand_def()
    result = result_def()

    def __init__(self, x: Value, bias: Value) -> None:
        super().__init__([x, bias], [self.infer(operand_type(x), operand_type(bias))])

    @classmethod
    def infer(cls, x: Tensor, bias: Tensor) -> Tensor:
        """Result type: the type of x."""
        cls.require_dtype("x", x, NUMBERS)
        if not x.get_shape():
            cls.fail(f"x has type {x}, expected rank 1 or more")
        cls.require_same(
            "bias", bias, "the last dimension of x", tensor_type(x.get_shape()[-1:], x.element_type)
        )
        return x

    def _infer_results(self) -> tuple[Tensor, ...]:
        return (self.infer(tensor_of(self.x), tensor_of(self.bias)),)


@irdl_op_definition
class BiasAddGradOp(CirhOp):
    """Sum of grad over all dimensions but the last."""

    name = "cirh.BiasAddGrad"
    FACTS: ClassVar[Facts] = mixes(samples=Samples.SUMMED, ends_update=True, gradient_of=BiasAddOp)
    grad = operand_def()
    result = result_def()

    def __init__(self, grad: Value) -> None:
        super().__init__([grad], [self.infer(operand_type(grad))])

    @classmethod
    def infer(cls, grad: Tensor) -> Tensor:
        """Result type: the last dimension of grad."""
        cls.require_dtype("grad", grad, NUMBERS)
        if not grad.get_shape():
            cls.fail(f"grad has type {grad}, expected rank 1 or more")
        return tensor_type(grad.get_shape()[-1:], grad.element_type)

    def _infer_results(self) -> tuple[Tensor, ...]:
        return (self.infer(tensor_of(self.grad)),)


@irdl_op_definition
class ReduceBiasOp(CirhOp):
    """Sum of grad over all dimensions but `dim`: the gradient of a bias along that dimension."""

    name = "cirh.ReduceBias"
    FACTS: ClassVar[Facts] = mixes(samples=Samples.SUMMED, ends_update=True)
    grad = operand_def()
    result = result_def()
    dim_attr = prop_def(INT, prop_name="dim")
    dim = IntParameter("dim")

    def __init__(self, grad: Value, dim: int) -> None:
        source = operand_type(grad)
        dim = dim + len(source.get_shape()) if dim < 0 else dim
        super().__init__([grad], [self.infer(source, dim)], {"dim": int_attr(dim)})

    @classmethod
    def infer(cls, grad: Tensor, dim: int) -> Tensor:
        """Result type: dimension `dim` of grad."""
        cls.require_dtype("grad", grad, NUMBERS)
        cls.require_axis(dim, len(grad.get_shape()))
        return tensor_type([grad.get_shape()[dim]], grad.element_type)

    def _infer_results(self) -> tuple[Tensor, ...]:
        return (self.infer(tensor_of(self.grad), self.dim),)
