"""Factorizations of matrices in the last two dimensions, and systems of triangular ones."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from xdsl.ir import SSAValue
from xdsl.irdl import irdl_op_definition, operand_def, prop_def, result_def

from cgc.cirh.base import BOOLEAN, FALSE, BoolParameter, CirhOp, Value, bool_attr, operand_type
from cgc.cirh.facts import Facts, Order, Work, mixes
from cgc.cirh.types import Tensor, shape_of, tensor_of, tensor_type

_FLOAT32 = frozenset({"float32"})
_ELIMINATION = Work(simple=2, stream=1)
_SWEEPS = 10
"""Sweeps of plane rotations until a matrix of float32 is diagonal."""


class MatrixOp(CirhOp):
    """Base of ops on matrices: one after the other, a row or column is taken out of all elements."""

    def stages(self) -> int:
        """One for each row or column."""
        return max(1, min(shape_of(self.operands[0])[-2:]))

    def row_reductions(self) -> int:
        """The products with a row or column."""
        return 1

    def sample_operands(self) -> Sequence[SSAValue]:
        """All operands; the rows of a single matrix are no samples."""
        return self.operands if len(shape_of(self.operands[0])) > 2 else ()

    @classmethod
    def require_matrix(cls, what: str, x: Tensor, square: bool = False) -> None:
        """Checks for float32 matrices that are not empty."""
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
    FACTS: ClassVar[Facts] = mixes(Work(simple=1, divide=0.1, stream=1), order=Order.STAGES)
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
    FACTS: ClassVar[Facts] = mixes(_ELIMINATION, order=Order.STAGES)
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
    FACTS: ClassVar[Facts] = mixes(_ELIMINATION, order=Order.STAGES)
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
    FACTS: ClassVar[Facts] = mixes(Work(simple=4, stream=1), order=Order.STAGES)
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
    FACTS: ClassVar[Facts] = mixes(Work(simple=4, divide=0.1, stream=1), order=Order.STAGES)
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
        """Several sweeps over all rows."""
        return _SWEEPS * super().stages()

    def _infer_results(self) -> tuple[Tensor, ...]:
        return self.infer(tensor_of(self.x), self.full_matrices)


@irdl_op_definition
class EighOp(MatrixOp):
    """Rising eigenvalues, and eigenvectors as columns, of symmetric matrices; reads their lower triangle."""

    name = "cirh.Eigh"
    FACTS: ClassVar[Facts] = mixes(Work(simple=4, divide=0.1, stream=1), order=Order.STAGES)
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
        """Several sweeps over all rows."""
        return _SWEEPS * super().stages()

    def _infer_results(self) -> tuple[Tensor, ...]:
        return self.infer(tensor_of(self.x))
