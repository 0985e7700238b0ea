"""Loops over the tokens of a sequence, whose ends are marked by `cstorch.experimental`."""

from __future__ import annotations

from xdsl.ir import SSAValue

from cgc.cirh import ops
from cgc.importers.aten.node import NodeContext, Table
from cgc.importers.diagnostics import Kind, RefusedError


def _start(node: NodeContext) -> tuple[SSAValue, SSAValue]:
    current, index = node.emit.emit_all(ops.StartTokenLoopOp(node.x("tokens")))
    return current, index


def _update(node: NodeContext) -> SSAValue:
    current, starts = node.x("current"), node.arg("start_tokens")
    if not isinstance(current.owner, ops.StartTokenLoopOp):
        raise RefusedError(
            Kind.USAGE, "its input_tensor is computed, expected the tensor that start_implicit_loop was given"
        )
    index, update, stop = (node.x(name) for name in ("index", "update", "stop"))
    most = node.arg("max_tokens")
    return node.emit.emit(ops.UpdateTokenLoopOp(current, index, update, stop, starts, most))


TABLE: Table = {
    "cstorch.start_token_loop.default": _start,
    "cstorch.update_token_loop.default": _update,
}
