"""Factorizations of matrices, linear systems, inverses and determinants."""

from __future__ import annotations

from xdsl.ir import SSAValue

from cgc.cirh import ops
from cgc.cirh.types import shape_of
from cgc.importers.composed import linalg
from cgc.importers.emit import broadcast_shape
from cgc.importers.tensorflow.node import NodeContext, Table


def _cholesky(node: NodeContext) -> SSAValue:
    return node.emit.emit(ops.CholeskyOp(node.x(0)))


def _triangular_solve(node: NodeContext) -> SSAValue:
    e, a, b = node.emit, node.x(0), node.x(1)
    batch = broadcast_shape(shape_of(a)[:-2], shape_of(b)[:-2])
    a, b = (e.broadcast(x, (*batch, *shape_of(x)[-2:])) for x in (a, b))
    return e.emit(ops.TriangularSolveOp(a, b, bool(node.attr("lower")), bool(node.attr("adjoint"))))


def _solve(node: NodeContext) -> SSAValue:
    e, lu = node.emit, linalg.factored(node.emit, node.x(0))
    return linalg.solve_factored(e, lu.factors, lu.permutation, node.x(1), bool(node.attr("adjoint")))


def _inverse(node: NodeContext) -> SSAValue:
    e, x = node.emit, node.x(0)
    found = linalg.inverse(e, x)
    return linalg.adjoint(e, found) if node.attr("adjoint") else found


def _log_determinant(node: NodeContext) -> tuple[SSAValue, SSAValue]:
    return linalg.sign_and_log_determinant(node.emit, linalg.factored(node.emit, node.x(0)))


def _determinant(node: NodeContext) -> SSAValue:
    return linalg.determinant(node.emit, linalg.factored(node.emit, node.x(0)))


def _qr(node: NodeContext) -> tuple[SSAValue, ...]:
    return node.emit.emit_all(ops.QrOp(node.x(0), bool(node.attr("full_matrices"))))


def _svd(node: NodeContext) -> tuple[SSAValue, ...]:
    """Singular values, left vectors, right vectors as columns."""
    e, compute = node.emit, bool(node.attr("compute_uv"))
    u, s, vt = e.emit_all(ops.SvdOp(node.x(0), bool(node.attr("full_matrices")) and compute))
    return (s, u, linalg.adjoint(e, vt)) if compute else (s, *[e.full(0, (0,), "float32")] * 2)


def _eigh(node: NodeContext) -> tuple[SSAValue, ...]:
    values, vectors = node.emit.emit_all(ops.EighOp(node.x(0)))
    return values, vectors if node.attr("compute_v") else node.emit.full(0, (0,), "float32")


TABLE: Table = {
    "Cholesky": _cholesky,
    "LogMatrixDeterminant": _log_determinant,
    "MatrixDeterminant": _determinant,
    "MatrixInverse": _inverse,
    "MatrixSolve": _solve,
    "MatrixTriangularSolve": _triangular_solve,
    "Qr": _qr,
    "SelfAdjointEigV2": _eigh,
    "Svd": _svd,
}
