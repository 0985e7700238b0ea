"""Functions of one variable that are no single CIRH op."""

from __future__ import annotations

from collections.abc import Callable

from xdsl.ir import SSAValue

from cgc.importers.composed import gamma, special
from cgc.importers.emit import Emitter
from cgc.importers.faults import Kind, RefusedError
from cgc.importers.tensorflow.node import Handler, NodeContext, Table


def _of(function: Callable[[Emitter, SSAValue], SSAValue]) -> Handler:
    return lambda node: function(node.emit, node.x(0))


def _polygamma(node: NodeContext) -> SSAValue:
    """Inputs: the order, x. Order 1 is what the gradient of digamma needs."""
    orders = node.static(0, "order")
    if not (orders == 1).all():
        raise RefusedError(Kind.USAGE, f"its order is {orders.max():g}, expected 1")
    return node.emit.broadcast(gamma.trigamma(node.emit, node.x(1)), node.op.outputs[0].shape.as_list())


TABLE: Table = {
    "Sinh": _of(special.sinh),
    "Cosh": _of(special.cosh),
    "Asin": _of(special.asin),
    "Acos": _of(special.acos),
    "Atan": _of(special.atan),
    "Asinh": _of(special.asinh),
    "Acosh": _of(special.acosh),
    "Atanh": _of(special.atanh),
    "Erfinv": _of(special.erfinv),
    "Ndtri": _of(special.normal_quantile),
    "Lgamma": _of(gamma.lgamma),
    "Digamma": _of(gamma.digamma),
    "Polygamma": _polygamma,
}
