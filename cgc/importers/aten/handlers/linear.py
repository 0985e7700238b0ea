"""Matrix products, factorizations of matrices, linear systems, inverses and determinants."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from xdsl.ir import SSAValue

from cgc.cirh import ops
from cgc.cirh.types import shape_of
from cgc.importers.aten.node import Factors, NodeContext, Table
from cgc.importers.decompositions import linalg
from cgc.importers.diagnostics import Kind, RefusedError
from cgc.importers.emit import Emitter


def product(e: Emitter, a: SSAValue, b: SSAValue) -> SSAValue:
    """Multiply matrices; transposed operands are read without a transpose."""
    (a, transpose_a), (b, transpose_b) = _strip_transpose(a), _strip_transpose(b)
    return e.emit(ops.MatMulOp(a, b, transpose_a, transpose_b))


def _strip_transpose(x: SSAValue) -> tuple[SSAValue, bool]:
    """Return the operand of a transpose of the last two dimensions, and whether there was one."""
    owner = x.owner
    rank = len(shape_of(x))
    if isinstance(owner, ops.TransposeOp) and owner.permutation == (*range(rank - 2), rank - 1, rank - 2):
        return owner.x, True
    return x, False


def _mm(node: NodeContext) -> SSAValue:
    return product(node.emit, node.cast(), node.cast("mat2"))


def _addmm(node: NodeContext) -> SSAValue:
    """Return `beta * self + alpha * mat1 @ mat2`; a vector as self is a bias."""
    e, beta, alpha = node.emit, node.arg("beta", 1), node.arg("alpha", 1)
    found = product(e, node.cast("mat1"), node.cast("mat2"))
    found = found if alpha == 1 else e.scale(found, alpha)
    if beta == 0:
        return found
    bias = node.cast() if beta == 1 else e.scale(node.cast(), beta)
    if len(shape_of(bias)) == 1 and shape_of(bias) == node.shape[-1:]:
        return e.emit(ops.BiasAddOp(found, bias))
    return e.add(found, bias)


def _bmm(node: NodeContext) -> SSAValue:
    return product(node.emit, node.cast(), node.cast("mat2"))


def _baddbmm(node: NodeContext) -> SSAValue:
    e, beta, alpha = node.emit, node.arg("beta", 1), node.arg("alpha", 1)
    found = product(e, node.cast("batch1"), node.cast("batch2"))
    found = found if alpha == 1 else e.scale(found, alpha)
    if beta == 0:
        return found
    return e.add(found, node.cast() if beta == 1 else e.scale(node.cast(), beta))


def _mv(node: NodeContext) -> SSAValue:
    e, vector = node.emit, node.cast("vec")
    column = e.reshape(vector, (*shape_of(vector), 1))
    return e.reshape(product(e, node.cast(), column), node.shape)


def _dot(node: NodeContext) -> SSAValue:
    e = node.emit
    other = "other" if "other" in node.node.arguments else "tensor"
    return e.reduce("ADD", e.mul(node.cast(), node.cast(other)), (0,))


def _trilinear(node: NodeContext) -> SSAValue:
    """Return the product of three tensors, broadcast over the axes that each lacks, summed over some axes."""
    e = node.emit
    total: SSAValue | None = None
    for name, lacks in (("i1", "expand1"), ("i2", "expand2"), ("i3", "expand3")):
        x = node.x(name)
        shape = list(shape_of(x))
        for axis in node.arg(lacks):
            shape.insert(axis, 1)
        x = e.reshape(x, shape)
        total = x if total is None else e.mul(total, x)
    assert total is not None
    return e.reduce("ADD", total, tuple(node.arg("sumdim")))


def _empty_result(node: NodeContext, position: int) -> SSAValue:
    """Return zeros for a result without a meaning here: error codes, vectors that are not requested."""
    result = node.result(position)
    return node.emit.full(0, result.shape, result.dtype)


def _cholesky(node: NodeContext) -> Sequence[SSAValue]:
    """Return the lower or the upper factor, computed from that triangle of x."""
    e, x, upper = node.emit, node.x(), bool(node.arg("upper"))
    found = e.emit(ops.CholeskyOp(linalg.adjoint(e, x) if upper else x))
    found = linalg.adjoint(e, found) if upper else found
    return [found, _empty_result(node, 1)] if len(node.node.results) > 1 else [found]


def _triangular(
    e: Emitter, a: SSAValue, b: SSAValue, *, upper: bool, unit: bool, transposed: bool = False
) -> SSAValue:
    a, b = linalg.broadcast_batch(e, a, b)
    return e.emit(ops.TriangularSolveOp(a, b, not upper, transposed, unit))


def _solve_triangular(node: NodeContext) -> SSAValue:
    """`A X = B`, or `X A = B`, which is `A^T X^T = B^T`."""
    e, a, b = node.emit, node.x(), node.x("B")
    upper, unit = bool(node.arg("upper")), bool(node.arg("unitriangular"))
    if node.arg("left", True):
        return _triangular(e, a, b, upper=upper, unit=unit)
    found = _triangular(e, a, linalg.adjoint(e, b), upper=upper, unit=unit, transposed=True)
    return linalg.adjoint(e, found)


def _triangular_solve(node: NodeContext) -> tuple[SSAValue, SSAValue]:
    """Return the older name, which also returns the matrix."""
    e, a = node.emit, node.x("A")
    how = {"upper": bool(node.arg("upper")), "unit": bool(node.arg("unitriangular"))}
    found = _triangular(e, a, node.x(), transposed=bool(node.arg("transpose")), **how)
    return found, e.broadcast(a, node.result(1).shape)


def _cholesky_solve(node: NodeContext) -> SSAValue:
    """Return the solution for `L L^T`, given L, or `U^T U`."""
    e, factor, upper = node.emit, node.x("input2"), bool(node.arg("upper"))
    half = _triangular(e, factor, node.x(), upper=upper, unit=False, transposed=upper)
    return _triangular(e, factor, half, upper=upper, unit=False, transposed=not upper)


def _cholesky_inverse(node: NodeContext) -> SSAValue:
    e, factor, upper = node.emit, node.x(), bool(node.arg("upper"))
    half = _triangular(e, factor, linalg.eye(e, factor), upper=upper, unit=False, transposed=upper)
    return _triangular(e, factor, half, upper=upper, unit=False, transposed=not upper)


def _factorize(node: NodeContext, a: SSAValue, of_determinant: bool = False) -> tuple[ops.LuOp, SSAValue]:
    """Factorize matrices, and return the pivots as LAPACK counts them, which identify the factors later."""
    lu = linalg.factorize(node.emit, a)
    pivots = node.emit.add(lu.pivots, node.emit.like(1, lu.pivots))
    node.step.factors[pivots] = Factors(lu.permutation, of_determinant)
    return lu, pivots


def _factors(node: NodeContext, name: str) -> Factors:
    found = node.step.factors.get(node.x(name))
    if found is None:
        raise RefusedError(Kind.USAGE, f"{name} are computed, expected those of torch.linalg.lu_factor")
    return found


def _solve(node: NodeContext) -> Sequence[SSAValue]:
    """Return solution, factors, pivots, code; B may be a vector for each matrix."""
    e, a, b = node.emit, node.x("A"), node.x("B")
    is_vector = len(shape_of(b)) == 1 or shape_of(b) == shape_of(a)[:-1]
    b = e.reshape(b, (*shape_of(b), 1)) if is_vector else b
    lu, pivots = _factorize(node, a)
    left = bool(node.arg("left", True)) or is_vector
    found = _solve_by_factors(e, lu.factors, lu.permutation, b, left, transposed=False)
    return [e.reshape(found, node.shape), lu.factors, pivots, _empty_result(node, 3)]


def _solve_by_factors(
    e: Emitter, factors: SSAValue, permutation: SSAValue, b: SSAValue, left: bool, transposed: bool
) -> SSAValue:
    """Return the solution of `A X = B`, or with False for `left` of `X A = B`, which is `A^T X^T = B^T`."""
    factors, b = linalg.broadcast_batch(e, factors, b)
    permutation = e.broadcast(permutation, shape_of(factors)[:-1])
    if left:
        return linalg.solve_factored(e, factors, permutation, b, transposed)
    turned = linalg.adjoint(e, b)
    return linalg.adjoint(e, linalg.solve_factored(e, factors, permutation, turned, not transposed))


def _lu_solve(node: NodeContext) -> SSAValue:
    known = _factors(node, "pivots")
    # The gradient of a determinant solves with A^T, by factors of A^T where A is contiguous; ours are of A.
    transposed = known.of_determinant or bool(node.arg("adjoint"))
    left = bool(node.arg("left", True))
    return _solve_by_factors(node.emit, node.x("LU"), known.permutation, node.x("B"), left, transposed)


def _lu_factor(node: NodeContext) -> Sequence[SSAValue]:
    if not node.arg("pivot", True):
        raise RefusedError(Kind.USAGE, "pivot is False, expected True")
    lu, pivots = _factorize(node, node.x("A"))
    return [lu.factors, pivots, *(_empty_result(node, i) for i in range(2, len(node.node.results)))]


def _lu_unpack(node: NodeContext) -> Sequence[SSAValue]:
    """`P @ L @ U` is the matrix."""
    e, x = node.emit, node.x("LU_data")
    size = shape_of(x)[-1]
    wanted = bool(node.arg("unpack_pivots", True)), bool(node.arg("unpack_data", True))
    permutation, lower, upper = _empty_result(node, 0), _empty_result(node, 1), _empty_result(node, 2)
    if wanted[0]:
        one, zero = e.scalar(1, "float32"), e.scalar(0, "float32")
        rows = e.emit(ops.OneHotOp(_factors(node, "LU_pivots").permutation, one, zero, size, -1))
        permutation = linalg.adjoint(e, rows)
    if wanted[1]:
        below = e.lower_triangle(size, size, -1)
        lower = e.add(e.select(below, x, e.like(0, x)), linalg.eye(e, x))
        upper = e.select(below, e.like(0, x), x)
    return [permutation, lower, upper]


def _inverse(node: NodeContext) -> Sequence[SSAValue]:
    return [linalg.inverse(node.emit, node.x("A")), _empty_result(node, 1)]


def _slogdet(node: NodeContext) -> Sequence[SSAValue]:
    lu, pivots = _factorize(node, node.x("A"), of_determinant=True)
    return [*linalg.sign_and_log_determinant(node.emit, lu), lu.factors, pivots]


def _det(node: NodeContext) -> Sequence[SSAValue]:
    lu, pivots = _factorize(node, node.x("A"), of_determinant=True)
    return [linalg.determinant(node.emit, lu), lu.factors, pivots]


def _pinv(node: NodeContext) -> SSAValue:
    """Singular values up to `atol`, or `rtol` times the largest, count as zero."""
    e, x = node.emit, node.x()
    _, s, _ = e.emit_all(ops.SvdOp(x))
    largest = e.reduce("MAX", s, (len(shape_of(s)) - 1,))
    relative = node.maybe("rtol")
    if relative is None:
        absolute = node.arg("atol")
        default = 0.0 if absolute is not None else max(shape_of(x)[-2:]) * float(np.finfo(np.float32).eps)
        relative = e.scalar(default, "float32")
    least = e.mul(largest, e.cast(relative, "float32"))
    absolute = node.maybe("atol")
    if absolute is not None:
        least = e.binary(ops.MaxOp, least, e.cast(absolute, "float32"))
    return linalg.pseudoinverse(e, x, least)


def _matrix_exp(node: NodeContext) -> SSAValue:
    return linalg.exponential(node.emit, node.x())


def _qr(node: NodeContext) -> Sequence[SSAValue]:
    mode = node.arg("mode", "reduced")
    q, r = node.emit.emit_all(ops.QrOp(node.x("A"), full_matrices=mode == "complete"))
    return [_empty_result(node, 0) if mode == "r" else q, r]


def _svd(node: NodeContext) -> Sequence[SSAValue]:
    compute = bool(node.arg("compute_uv", True))
    full = bool(node.arg("full_matrices")) and compute
    u, s, vt = node.emit.emit_all(ops.SvdOp(node.x("A"), full))
    return [u, s, vt] if compute else [_empty_result(node, 0), s, _empty_result(node, 2)]


def _eigh(node: NodeContext) -> Sequence[SSAValue]:
    e, x = node.emit, node.x("A")
    x = linalg.adjoint(e, x) if node.arg("UPLO", "L").upper() == "U" else x
    values, vectors = e.emit_all(ops.EighOp(x))
    return [values, vectors if node.arg("compute_v", True) else _empty_result(node, 1)]


def _nothing(node: NodeContext) -> Sequence[SSAValue]:
    """Check of codes of errors: the device has none; a matrix without factors gives NaN."""
    return ()


TABLE: Table = {
    "aten._trilinear.default": _trilinear,
    "aten.mm.default": _mm,
    "aten.addmm.default": _addmm,
    "aten.bmm.default": _bmm,
    "aten.baddbmm.default": _baddbmm,
    "aten.mv.default": _mv,
    "aten.dot.default": _dot,
    "aten.vdot.default": _dot,
    "aten._linalg_check_errors.default": _nothing,
    "aten.linalg_cholesky_ex.default": _cholesky,
    "aten.cholesky.default": _cholesky,
    "aten.cholesky_solve.default": _cholesky_solve,
    "aten.cholesky_inverse.default": _cholesky_inverse,
    "aten.linalg_solve_triangular.default": _solve_triangular,
    "aten.triangular_solve.default": _triangular_solve,
    "aten._linalg_solve_ex.default": _solve,
    "aten.linalg_lu_solve.default": _lu_solve,
    "aten.linalg_lu_factor_ex.default": _lu_factor,
    "aten.linalg_lu_factor.default": _lu_factor,
    "aten.lu_unpack.default": _lu_unpack,
    "aten.linalg_pinv.atol_rtol_tensor": _pinv,
    "aten.linalg_matrix_exp.default": _matrix_exp,
    "aten.linalg_inv_ex.default": _inverse,
    "aten._linalg_slogdet.default": _slogdet,
    "aten._linalg_det.default": _det,
    "aten.linalg_qr.default": _qr,
    "aten._linalg_svd.default": _svd,
    "aten._linalg_eigh.default": _eigh,
}
