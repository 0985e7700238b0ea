"""Linear algebra: matrix products, factorizations, triangular systems and Fourier transforms.

Complex numbers are pairs of tensors, re and im."""

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
from cgc.cirh.traits import Fp16, OpTraits, Order, Samples, Work, mixes, pointwise
from cgc.cirh.types import NUMBERS, Tensor, shape_of, tensor_of, tensor_type


@irdl_op_definition
class MatMulOp(CirhOp):
    """Matrix product over the last two dimensions; leading (batch) dimensions of both are equal."""

    name = "cirh.MatMul"
    TRAITS: ClassVar[OpTraits] = mixes(fp16=Fp16.STARTS, product=True, ends_update=True)
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
        """Return a, whose rows may be samples, unless it is summed over its rows."""
        if len(shape_of(self.result)) > 2:
            return self.operands
        return () if self.transpose_a else (self.a,)

    def _infer_results(self) -> tuple[Tensor, ...]:
        return (self.infer(tensor_of(self.a), tensor_of(self.b), self.transpose_a, self.transpose_b),)


@irdl_op_definition
class DotGeneralOp(CirhOp):
    """Product summed over the contracting dimensions of both sides, per index of the batching dimensions.

    The result has the batching dimensions, then the other ones of lhs, then those of rhs.
    """

    name = "cirh.DotGeneral"
    TRAITS: ClassVar[OpTraits] = mixes(fp16=Fp16.STARTS, product=True, ends_update=True)
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
        """Return sizes of the batching dimensions, and of those that are neither batching nor contracting."""
        shape, used = tensor.get_shape(), [*batching, *contracting]
        if len(set(used)) != len(used) or not set(used) <= set(range(len(shape))):
            cls.fail(
                f"batching and contracting dimensions are {tuple(used)}, expected some of {name}: {tensor}"
            )
        return [shape[dim] for dim in batching], [n for dim, n in enumerate(shape) if dim not in used]

    def sample_operands(self) -> Sequence[SSAValue]:
        """Return lhs, if its first dimension is that of the result; with batches both."""
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
    TRAITS: ClassVar[OpTraits] = pointwise(fp16=Fp16.FOLLOWS)
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
    TRAITS: ClassVar[OpTraits] = mixes(samples=Samples.SUMMED, ends_update=True, gradient_of=BiasAddOp)
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
    TRAITS: ClassVar[OpTraits] = mixes(samples=Samples.SUMMED, ends_update=True)
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


_FLOAT32 = frozenset({"float32"})
_ELIMINATION = Work(simple=2, stream=1)
_SWEEPS = 10  # sweeps of plane rotations until a matrix of float32 is diagonal


class MatrixOp(CirhOp):
    """Base of ops on matrices that eliminate rows or columns in sequence."""

    def stages(self) -> int:
        """Return one stage for each row or column."""
        return max(1, min(shape_of(self.operands[0])[-2:]))

    def row_reductions(self) -> int:
        """Return 1: the products with a row or column."""
        return 1

    def sample_operands(self) -> Sequence[SSAValue]:
        """Return all operands; the rows of a single matrix are no samples."""
        return self.operands if len(shape_of(self.operands[0])) > 2 else ()

    @classmethod
    def require_matrix(cls, what: str, x: Tensor, square: bool = False) -> None:
        """Check for float32 matrices that are not empty."""
        cls.require_dtype(what, x, _FLOAT32)
        shape = x.get_shape()
        if len(shape) < 2 or 0 in shape[-2:] or (square and shape[-1] != shape[-2]):
            cls.fail(
                f"{what} has type {x}, expected {'square ' if square else ''}matrices that are not empty"
            )


@irdl_op_definition
class CholeskyOp(MatrixOp):
    """The lower triangle with `result @ result^T == x`, else NaN; reads the lower triangle of x."""

    name = "cirh.Cholesky"
    TRAITS: ClassVar[OpTraits] = mixes(Work(simple=1, divide=0.1, stream=1), order=Order.STAGES)
    x = operand_def()
    result = result_def()

    def __init__(self, x: Value) -> None:
        super().__init__([x], [self.infer(operand_type(x))])

    @classmethod
    def infer(cls, x: Tensor) -> Tensor:
        """Result type: the type of x."""
        cls.require_matrix("x", x, square=True)
        return x

    def _infer_results(self) -> tuple[Tensor, ...]:
        return (self.infer(tensor_of(self.x)),)


@irdl_op_definition
class TriangularSolveOp(MatrixOp):
    """The result with `a @ result == b`, `a^T @ result == b` with `transpose_a`.

    Reads the lower triangle of a, or the upper one; with `unit_diagonal` its diagonal counts as 1.
    """

    name = "cirh.TriangularSolve"
    TRAITS: ClassVar[OpTraits] = mixes(_ELIMINATION, order=Order.STAGES)
    a = operand_def()
    b = operand_def()
    result = result_def()
    lower_attr = prop_def(BOOLEAN, prop_name="lower")
    transpose_a_attr = prop_def(BOOLEAN, default_value=FALSE, prop_name="transpose_a")
    unit_diagonal_attr = prop_def(BOOLEAN, default_value=FALSE, prop_name="unit_diagonal")
    lower = BoolParameter("lower")
    transpose_a = BoolParameter("transpose_a")
    unit_diagonal = BoolParameter("unit_diagonal")

    def __init__(
        self, a: Value, b: Value, lower: bool, transpose_a: bool = False, unit_diagonal: bool = False
    ) -> None:
        super().__init__(
            [a, b],
            [self.infer(operand_type(a), operand_type(b))],
            {
                "lower": bool_attr(lower),
                "transpose_a": bool_attr(transpose_a),
                "unit_diagonal": bool_attr(unit_diagonal),
            },
        )

    @classmethod
    def infer(cls, a: Tensor, b: Tensor) -> Tensor:
        """Result type: the type of b."""
        cls.require_matrix("a", a, square=True)
        cls.require_dtype("b", b, _FLOAT32)
        if len(b.get_shape()) < 2 or b.get_shape()[:-1] != a.get_shape()[:-1]:
            cls.fail(f"b has type {b}, expected the dimensions of a ({a}) but for the last one")
        return b

    def _infer_results(self) -> tuple[Tensor, ...]:
        return (self.infer(tensor_of(self.a), tensor_of(self.b)),)


@irdl_op_definition
class LuOp(MatrixOp):
    """The factors of x with its rows exchanged: `lower @ upper == x[permutation]`.

    `factors` has the upper triangle, and below its diagonal the lower one, whose diagonal is 1. `pivots` says
    with which row each was exchanged, counted from 0.
    """

    name = "cirh.Lu"
    TRAITS: ClassVar[OpTraits] = mixes(_ELIMINATION, order=Order.STAGES)
    x = operand_def()
    factors = result_def()
    pivots = result_def()
    permutation = result_def()

    def __init__(self, x: Value) -> None:
        super().__init__([x], self.infer(operand_type(x)))

    @classmethod
    def infer(cls, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Result types: the type of x, and integers for its rows, twice."""
        cls.require_matrix("x", x, square=True)
        rows = tensor_type(x.get_shape()[:-1], "int32")
        return x, rows, rows

    def _infer_results(self) -> tuple[Tensor, ...]:
        return self.infer(tensor_of(self.x))


@irdl_op_definition
class QrOp(MatrixOp):
    """`q @ r == x`: orthonormal columns and an upper triangle, by Householder reflections.

    q of `[m, n]` has min(m, n) columns, m with `full_matrices`.
    """

    name = "cirh.Qr"
    TRAITS: ClassVar[OpTraits] = mixes(Work(simple=4, stream=1), order=Order.STAGES)
    x = operand_def()
    q = result_def()
    r = result_def()
    full_matrices_attr = prop_def(BOOLEAN, default_value=FALSE, prop_name="full_matrices")
    full_matrices = BoolParameter("full_matrices")

    def __init__(self, x: Value, full_matrices: bool = False) -> None:
        types = self.infer(operand_type(x), full_matrices)
        super().__init__([x], types, {"full_matrices": bool_attr(full_matrices)})

    @classmethod
    def infer(cls, x: Tensor, full_matrices: bool) -> tuple[Tensor, Tensor]:
        """Result types: `[m, k]` and `[k, n]`."""
        cls.require_matrix("x", x)
        *batch, m, n = x.get_shape()
        k = m if full_matrices else min(m, n)
        return tensor_type([*batch, m, k], "float32"), tensor_type([*batch, k, n], "float32")

    def _infer_results(self) -> tuple[Tensor, ...]:
        return self.infer(tensor_of(self.x), self.full_matrices)


@irdl_op_definition
class SvdOp(MatrixOp):
    """`u @ diagonal(s) @ vt == x` with orthonormal columns of u and rows of vt, and s falling.

    u of `[m, n]` has min(m, n) columns, m with `full_matrices`, and vt as many rows, or n.
    """

    name = "cirh.Svd"
    TRAITS: ClassVar[OpTraits] = mixes(Work(simple=4, divide=0.1, stream=1), order=Order.STAGES)
    x = operand_def()
    u = result_def()
    s = result_def()
    vt = result_def()
    full_matrices_attr = prop_def(BOOLEAN, default_value=FALSE, prop_name="full_matrices")
    full_matrices = BoolParameter("full_matrices")

    def __init__(self, x: Value, full_matrices: bool = False) -> None:
        types = self.infer(operand_type(x), full_matrices)
        super().__init__([x], types, {"full_matrices": bool_attr(full_matrices)})

    @classmethod
    def infer(cls, x: Tensor, full_matrices: bool) -> tuple[Tensor, Tensor, Tensor]:
        """Result types: `[m, k]`, `[min(m, n)]` and `[l, n]`."""
        cls.require_matrix("x", x)
        *batch, m, n = x.get_shape()
        count = min(m, n)
        shapes = (m, m if full_matrices else count), (count,), (n if full_matrices else count, n)
        u, s, vt = (tensor_type([*batch, *shape], "float32") for shape in shapes)
        return u, s, vt

    def stages(self) -> int:
        """Return the stages of several sweeps over all rows."""
        return _SWEEPS * super().stages()

    def _infer_results(self) -> tuple[Tensor, ...]:
        return self.infer(tensor_of(self.x), self.full_matrices)


@irdl_op_definition
class EighOp(MatrixOp):
    """Rising eigenvalues, and eigenvectors as columns, of symmetric matrices; reads their lower triangle."""

    name = "cirh.Eigh"
    TRAITS: ClassVar[OpTraits] = mixes(Work(simple=4, divide=0.1, stream=1), order=Order.STAGES)
    x = operand_def()
    values = result_def()
    vectors = result_def()

    def __init__(self, x: Value) -> None:
        super().__init__([x], self.infer(operand_type(x)))

    @classmethod
    def infer(cls, x: Tensor) -> tuple[Tensor, Tensor]:
        """Result types: `[n]` and `[n, n]`."""
        cls.require_matrix("x", x, square=True)
        return tensor_type(x.get_shape()[:-1], "float32"), x

    def stages(self) -> int:
        """Return the stages of several sweeps over all rows."""
        return _SWEEPS * super().stages()

    def _infer_results(self) -> tuple[Tensor, ...]:
        return self.infer(tensor_of(self.x))


# Of a complex element in each stage: a rotation is 6 operations, sum and difference 4, for two elements.
_BUTTERFLY = Work(simple=5, stream=1)


class FourierOp(CirhOp):
    """Base of the transforms: their stages, and the checks of their operands."""

    def stages(self) -> int:
        """Return one stage for each doubling of the length."""
        length = max(shape_of(value)[-1] for value in (*self.operands, *self.results))
        return max(1, (length - 1).bit_length())

    def row_reductions(self) -> int:
        """Return 1: every element of the result is a sum."""
        return 1

    @classmethod
    def require_pair(cls, re: Tensor, im: Tensor) -> None:
        """Check that two operands are the parts of complex numbers."""
        cls.require_rows("re", re)
        cls.require_same("im", im, "re", re)

    @classmethod
    def require_rows(cls, what: str, x: Tensor) -> None:
        """Check for float32 and a last dimension that is not empty."""
        cls.require_dtype(what, x, _FLOAT32)
        if not x.get_shape() or not x.get_shape()[-1]:
            cls.fail(f"{what} has type {x}, expected rank 1 or more and a last dimension that is not empty")


@irdl_op_definition
class FftOp(FourierOp):
    """`sum(x[k] * exp(-2 pi i j k / n))` for every j.

    With `inverse` the exponent has the other sign, and the sum is divided by n.
    """

    name = "cirh.Fft"
    TRAITS: ClassVar[OpTraits] = mixes(_BUTTERFLY, order=Order.STAGES)
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
    TRAITS: ClassVar[OpTraits] = mixes(Work(simple=2.5, stream=1), order=Order.STAGES)
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
    TRAITS: ClassVar[OpTraits] = mixes(Work(simple=2.5, stream=1), order=Order.STAGES)
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
