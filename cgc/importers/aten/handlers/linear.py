"""Matrix products."""

from __future__ import annotations

from xdsl.ir import SSAValue

from cgc.cirh import ops
from cgc.cirh.types import shape_of
from cgc.importers.aten.node import NodeContext, Table
from cgc.importers.emit import Emitter


def product(e: Emitter, a: SSAValue, b: SSAValue) -> SSAValue:
    """A product of matrices; transposed operands are read as they lie in memory."""
    (a, transpose_a), (b, transpose_b) = _as_it_lies(a), _as_it_lies(b)
    return e.emit(ops.MatMulOp(a, b, transpose_a, transpose_b))


def _as_it_lies(x: SSAValue) -> tuple[SSAValue, bool]:
    """What was transposed in its last two dimensions, and whether it was."""
    owner = x.owner
    rank = len(shape_of(x))
    if isinstance(owner, ops.TransposeOp) and owner.permutation == (*range(rank - 2), rank - 1, rank - 2):
        return owner.x, True
    return x, False


def _mm(node: NodeContext) -> SSAValue:
    return product(node.emit, node.cast(), node.cast("mat2"))


def _addmm(node: NodeContext) -> SSAValue:
    """`beta * self + alpha * mat1 @ mat2`; a vector in place of self is a bias."""
    e, beta, alpha = node.emit, node.arg("beta", 1), node.arg("alpha", 1)
    found = product(e, node.cast("mat1"), node.cast("mat2"))
    found = found if alpha == 1 else e.scaled(found, alpha)
    if beta == 0:
        return found
    bias = node.cast() if beta == 1 else e.scaled(node.cast(), beta)
    if len(shape_of(bias)) == 1 and shape_of(bias) == node.shape[-1:]:
        return e.emit(ops.BiasAddOp(found, bias))
    return e.add(found, bias)


def _bmm(node: NodeContext) -> SSAValue:
    return product(node.emit, node.cast(), node.cast("mat2"))


def _baddbmm(node: NodeContext) -> SSAValue:
    e, beta, alpha = node.emit, node.arg("beta", 1), node.arg("alpha", 1)
    found = product(e, node.cast("batch1"), node.cast("batch2"))
    found = found if alpha == 1 else e.scaled(found, alpha)
    if beta == 0:
        return found
    return e.add(found, node.cast() if beta == 1 else e.scaled(node.cast(), beta))


def _mv(node: NodeContext) -> SSAValue:
    e, vector = node.emit, node.cast("vec")
    column = e.reshape(vector, (*shape_of(vector), 1))
    return e.reshape(product(e, node.cast(), column), node.shape)


def _dot(node: NodeContext) -> SSAValue:
    e = node.emit
    other = "other" if "other" in node.node.arguments else "tensor"
    return e.reduce("ADD", e.mul(node.cast(), node.cast(other)), (0,))


def _trilinear(node: NodeContext) -> SSAValue:
    """The product of three tensors, broadcast over the axes that each lacks, summed over some axes."""
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


TABLE: Table = {
    "aten._trilinear.default": _trilinear,
    "aten.mm.default": _mm,
    "aten.addmm.default": _addmm,
    "aten.bmm.default": _bmm,
    "aten.baddbmm.default": _baddbmm,
    "aten.mv.default": _mv,
    "aten.dot.default": _dot,
    "aten.vdot.default": _dot,
}
