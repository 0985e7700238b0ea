"""Matrix products, tf.einsum, factorizations of matrices, linear systems, inverses and determinants."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from xdsl.ir import SSAValue

from cgc.cirh import ops
from cgc.cirh.types import shape_of
from cgc.importers.decompositions import linalg
from cgc.importers.emit import Emitter, dtype_of
from cgc.importers.tensorflow.node import NodeContext, Table


def _matmul(node: NodeContext) -> SSAValue:
    a, b = node.all()
    return node.emit.emit(ops.MatMulOp(a, b, node.attr("transpose_a"), node.attr("transpose_b")))


def _batch_matmul(node: NodeContext) -> SSAValue:
    """Return products over the last two axes; the leading ones are broadcast (BatchMatMulV2, V3)."""
    e = node.emit
    a, b = linalg.broadcast_batch(e, *node.all())
    return e.emit(ops.MatMulOp(a, b, node.attr("adj_x"), node.attr("adj_y")))


def _bias_add(node: NodeContext) -> SSAValue:
    e, (x, bias) = node.emit, node.all()
    if not _channels_first(node, x):
        return e.emit(ops.BiasAddOp(x, bias))
    return e.add(x, e.reshape(bias, (-1, *(1,) * (len(shape_of(x)) - 2))))


def _bias_add_grad(node: NodeContext) -> SSAValue:
    e, grad = node.emit, node.x(0)
    if not _channels_first(node, grad):
        return e.emit(ops.BiasAddGradOp(grad))
    return e.reduce("ADD", grad, [axis for axis in range(len(shape_of(grad))) if axis != 1])


def _channels_first(node: NodeContext, x: SSAValue) -> bool:
    return bool(node.attr("data_format") == b"NCHW") and len(shape_of(x)) > 2


_LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"


def _einsum(node: NodeContext) -> SSAValue:
    equation = node.attr("equation").decode().replace(" ", "")
    operands = node.all()
    labels, result = _labels(equation, [len(shape_of(x)) for x in operands])
    named, result = result, "".join(dict.fromkeys(result))
    taken = [_diagonals(node.emit, x, own) for x, own in zip(operands, labels, strict=True)]
    operands, labels = [x for x, _ in taken], [own for _, own in taken]
    if len(operands) == 1:
        product = _arrange(node.emit, *_sum_labels(node.emit, operands[0], labels[0], result), result)
    else:
        product = _product(node.emit, operands, labels, result)
    return _on_diagonals(node.emit, product, result, named)


def _labels(equation: str, ranks: Sequence[int]) -> tuple[list[str], str]:
    """Return a letter for each axis of operands and result; an ellipsis becomes capital letters."""
    left, _, result = equation.partition("->")
    terms = left.split(",")
    hidden = [
        rank - len(term.replace("...", "")) if "..." in term else 0
        for term, rank in zip(terms, ranks, strict=True)
    ]
    widest = max(hidden)
    # Without the capitals that the program itself uses.
    free = [letter for letter in _LETTERS if letter not in equation][:widest]
    labels = [
        term.replace("...", "".join(free[widest - count :]))
        for term, count in zip(terms, hidden, strict=True)
    ]
    return labels, result.replace("...", "".join(free))


def _diagonals(e: Emitter, x: SSAValue, labels: str) -> tuple[SSAValue, str]:
    """Return the operand with one axis per label: the diagonal of axes that share one."""
    for label in labels:
        while labels.count(label) > 1:
            first = labels.index(label)
            second = labels.index(label, first + 1)
            rest = [axis for axis in range(len(labels)) if axis not in (first, second)]
            turned = e.transpose(x, [first, second, *rest])
            size, tail = shape_of(turned)[0], shape_of(turned)[2:]
            rows = e.reshape(turned, (size * size, *tail))
            # as a strided slice: the rows of the diagonal are size + 1 apart
            x = e.slice(
                rows,
                [0] * (1 + len(tail)),
                [(size - 1) * (size + 1) + 1 if size else 0, *tail],
                [size + 1] + [1] * len(tail),
            )
            labels = label + "".join(labels[axis] for axis in rest)
    return x, labels


def _on_diagonals(e: Emitter, x: SSAValue, labels: str, named: str) -> SSAValue:
    """Return the inverse of `_diagonals`: zero where axes that share a label differ in their positions."""
    if labels == named:
        return x
    sizes = dict(zip(labels, shape_of(x), strict=True))
    places = np.indices([sizes[label] for label in named], sparse=True)
    inside: Any = True
    for axis, label in enumerate(named):
        inside = inside & (places[axis] == places[named.index(label)])
    shape = [sizes[label] if named.index(label) == axis else 1 for axis, label in enumerate(named)]
    return e.select(e.constant(inside), e.reshape(x, shape), e.scalar(0, dtype_of(x)))


def _sum_labels(e: Emitter, x: SSAValue, labels: str, kept: str) -> tuple[SSAValue, str]:
    """Return the operand without the axes that nothing else has."""
    gone = [axis for axis, label in enumerate(labels) if label not in kept]
    return e.reduce("ADD", x, gone), "".join(label for label in labels if label in kept)


def _arrange(e: Emitter, x: SSAValue, labels: str, wanted: str) -> SSAValue:
    return e.transpose(x, [labels.index(label) for label in wanted])


def _product(e: Emitter, operands: Sequence[SSAValue], labels: Sequence[str], result: str) -> SSAValue:
    """Multiply matrices over the axes that only the operands share; axes in all three are the batch."""
    (a, left), (b, right) = (
        _sum_labels(e, x, own, result + other)
        for x, own, other in zip(operands, labels, reversed(labels), strict=True)
    )
    sizes: dict[str, int] = {}
    for x, axes in ((a, left), (b, right)):
        for label, size in zip(axes, shape_of(x), strict=True):
            sizes[label] = max(size, sizes.get(label, 1))
    batch = [label for label in result if label in left and label in right]
    rows = [label for label in result if label in left and label not in right]
    columns = [label for label in result if label in right and label not in left]
    inner = [label for label in left if label in right and label not in result]

    def side(x: SSAValue, own: str, *groups: Sequence[str]) -> SSAValue:
        """Return an operand as [*batch, *groups], each group one axis; axes of size 1 grow to the other's."""
        order = [*batch, *(label for group in groups for label in group)]
        arranged = e.broadcast(_arrange(e, x, own, "".join(order)), [sizes[label] for label in order])
        return e.reshape(
            arranged,
            [
                *(sizes[label] for label in batch),
                *(math.prod(sizes[label] for label in group) for group in groups),
            ],
        )

    product = e.emit(ops.MatMulOp(side(a, left, rows, inner), side(b, right, inner, columns), False, False))
    order = [*batch, *rows, *columns]
    return _arrange(e, e.reshape(product, [sizes[label] for label in order]), "".join(order), result)


def _cholesky(node: NodeContext) -> SSAValue:
    return node.emit.emit(ops.CholeskyOp(node.x(0)))


def _triangular_solve(node: NodeContext) -> SSAValue:
    e = node.emit
    a, b = linalg.broadcast_batch(e, *node.all())
    return e.emit(ops.TriangularSolveOp(a, b, bool(node.attr("lower")), bool(node.attr("adjoint"))))


def _solve(node: NodeContext) -> SSAValue:
    e, lu = node.emit, linalg.factorize(node.emit, node.x(0))
    return linalg.solve_factored(e, lu.factors, lu.permutation, node.x(1), bool(node.attr("adjoint")))


def _inverse(node: NodeContext) -> SSAValue:
    e, x = node.emit, node.x(0)
    found = linalg.inverse(e, x)
    return linalg.adjoint(e, found) if node.attr("adjoint") else found


def _log_determinant(node: NodeContext) -> tuple[SSAValue, SSAValue]:
    return linalg.sign_and_log_determinant(node.emit, linalg.factorize(node.emit, node.x(0)))


def _determinant(node: NodeContext) -> SSAValue:
    return linalg.determinant(node.emit, linalg.factorize(node.emit, node.x(0)))


def _qr(node: NodeContext) -> tuple[SSAValue, ...]:
    return node.emit.emit_all(ops.QrOp(node.x(0), bool(node.attr("full_matrices"))))


def _svd(node: NodeContext) -> tuple[SSAValue, ...]:
    """Return singular values, left vectors, right vectors as columns."""
    e, compute = node.emit, bool(node.attr("compute_uv"))
    u, s, vt = e.emit_all(ops.SvdOp(node.x(0), bool(node.attr("full_matrices")) and compute))
    return (s, u, linalg.adjoint(e, vt)) if compute else (s, *[e.full(0, (0,), "float32")] * 2)


def _eigh(node: NodeContext) -> tuple[SSAValue, ...]:
    values, vectors = node.emit.emit_all(ops.EighOp(node.x(0)))
    return values, vectors if node.attr("compute_v") else node.emit.full(0, (0,), "float32")


TABLE: Table = {
    "MatMul": _matmul,
    "BatchMatMul": _batch_matmul,
    "BatchMatMulV2": _batch_matmul,
    "BatchMatMulV3": _batch_matmul,
    "BiasAdd": _bias_add,
    "BiasAddGrad": _bias_add_grad,
    "Einsum": _einsum,
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
