"""Chains of elementwise ops under one name, as loop nests; the formulas of `cgc.lowering`."""

from __future__ import annotations

from cgc.cirh import ops
from cgc.cirh.base import CirhOp
from cgc.cirh.composite import COMPOSITES
from cgc.cirh.ops import CompositeOp
from cgc.lair import activation, elementwise
from cgc.lair.affine import affine_map, dim, identity
from cgc.lair.build import Array, Builder, Read
from cgc.lair.structure import Rule

_FORMULAS = elementwise.FORMULAS | activation.FORMULAS


def bias_activation(builder: Builder, op: CompositeOp, x: Array, bias: Array) -> Array:
    """The activation of x plus bias."""
    kind, approximation = COMPOSITES[op.function]
    reads = [Read(x, identity(x.rank)), Read(bias, affine_map(x.rank, [dim(x.rank - 1)]))]
    if kind is ops.GeluOp:
        return builder.parallel(
            x.shape,
            reads,
            x.dtype,
            lambda element, term: activation.gelu(element + term, approximation == "TANH"),
        )
    formula = _FORMULAS[kind]
    return builder.parallel(x.shape, reads, x.dtype, lambda element, term: formula(op, element + term))


RULES: dict[type[CirhOp], Rule] = {
    ops.CompositeOp: bias_activation,
}
