"""Functions of one variable that are no single CIRH op."""

from __future__ import annotations

from collections.abc import Callable

from xdsl.ir import SSAValue

from cgc.importers.aten.node import Handler, NodeContext, Table
from cgc.importers.composed import gamma, special
from cgc.importers.emit import Emitter
from cgc.importers.faults import Kind, RefusedError


def _of(function: Callable[[Emitter, SSAValue], SSAValue]) -> Handler:
    return lambda node: function(node.emit, node.cast())


def _polygamma(node: NodeContext) -> SSAValue:
    """Of order 1, which the gradient of digamma needs."""
    if node.arg("n") != 1:
        raise RefusedError(Kind.USAGE, f"its order is {node.arg('n')}, expected 1")
    return gamma.trigamma(node.emit, node.cast())


TABLE: Table = {
    "aten.sinh.default": _of(special.sinh),
    "aten.cosh.default": _of(special.cosh),
    "aten.asin.default": _of(special.asin),
    "aten.acos.default": _of(special.acos),
    "aten.atan.default": _of(special.atan),
    "aten.asinh.default": _of(special.asinh),
    "aten.acosh.default": _of(special.acosh),
    "aten.atanh.default": _of(special.atanh),
    "aten.erfinv.default": _of(special.erfinv),
    "aten.special_ndtri.default": _of(special.normal_quantile),
    "aten.lgamma.default": _of(gamma.lgamma),
    "aten.digamma.default": _of(gamma.digamma),
    "aten.polygamma.default": _polygamma,
}
