"""Variables, and operations without a computation: identities, placeholders, checks and summaries."""

from __future__ import annotations

import math

import numpy as np
import tensorflow as tf
from xdsl.ir import SSAValue

from cgc.cirh import ops
from cgc.cirh.types import shape_of
from cgc.importers.decompositions.indexing import gather
from cgc.importers.diagnostics import Kind, RefusedError
from cgc.importers.emit import Array, Maker
from cgc.importers.tensorflow.node import Handle, Handler, NodeContext, Table, Value
from cgc.importers.tensorflow.variables import key_of

# Op types that act on the host only; they and what only they need are left out of a step.
DROPPED = frozenset(
    {
        "Assert",
        "PrintV2",
        "ScalarSummary",
        "HistogramSummary",
        "ImageSummary",
        "AudioSummaryV2",
        "TensorSummary",
        "TensorSummaryV2",
        "MergeSummary",
        "WriteSummary",
        "WriteScalarSummary",
        "WriteHistogramSummary",
    }
)


def _identity(node: NodeContext) -> Value:
    return node.inputs[0]


def _identity_n(node: NodeContext) -> list[Value]:
    return list(node.inputs)


def _nothing(node: NodeContext) -> None:
    return None


def _placeholder(node: NodeContext) -> Value:
    if node.op.outputs[0].dtype == tf.resource:
        raise RefusedError(
            Kind.USAGE,
            "this resource is not a tf.Variable (it is a table, an iterator or a queue); its outputs belong "
            "in the input function",
        )
    raise RefusedError(
        Kind.USAGE, "this placeholder is not an input of the step; use a tensor of the features or labels"
    )


def _handle(node: NodeContext) -> Handle:
    return Handle(key_of(node.op))


def _read(node: NodeContext) -> SSAValue:
    return node.read()


def _is_initialized(node: NodeContext) -> Array:
    """Return True: a step runs only on initialized state."""
    return np.asarray(True)


def _assign(node: NodeContext) -> None:
    node.write(0, node.x(1))


def _update(op_type: Maker) -> Handler:
    def handler(node: NodeContext) -> None:
        current = node.read()
        change = node.emit.broadcast(node.x(1), shape_of(current))
        node.write(0, node.emit.emit(op_type(current, change)))

    return handler


def _gather(node: NodeContext) -> SSAValue:
    batch_dims = int(node.attr("batch_dims"))
    return gather(node.emit, node.read(), node.x(1), batch_dims, batch_dims)


def _scatter(kind: str, *, negate: bool = False) -> Handler:
    """Return rows put in the place of rows of a variable (SET) or combined with them."""

    def handler(node: NodeContext) -> None:
        e, current, indices = node.emit, node.read(), node.x(1)
        count, row = math.prod(shape_of(indices)), shape_of(current)[1:]
        updates = e.broadcast(node.x(2), (*shape_of(indices), *row))
        rows = e.reshape(e.unary(ops.NegOp, updates) if negate else updates, (count, *row))
        node.write(0, e.emit(ops.ScatterOp(current, e.reshape(indices, (count,)), rows, kind)))

    return handler


TABLE: Table = {
    "Placeholder": _placeholder,
    **dict.fromkeys(
        (
            "Identity",
            "StopGradient",
            "PreventGradient",
            "Snapshot",
            "CheckNumerics",
            "CheckNumericsV2",
            "EnsureShape",
            "PlaceholderWithDefault",
            "Print",
            "OptimizationBarrier",
        ),
        _identity,
    ),
    "IdentityN": _identity_n,
    "NoOp": _nothing,
    "ControlTrigger": _nothing,
    "VarHandleOp": _handle,
    "VarIsInitializedOp": _is_initialized,
    "ReadVariableOp": _read,
    "AssignVariableOp": _assign,
    "AssignAddVariableOp": _update(ops.AddOp),
    "AssignSubVariableOp": _update(ops.SubOp),
    "ResourceGather": _gather,
    "ResourceScatterAdd": _scatter("ADD"),
    "ResourceScatterSub": _scatter("ADD", negate=True),
    "ResourceScatterUpdate": _scatter("SET"),
    "ResourceScatterMul": _scatter("MUL"),
    "ResourceScatterMax": _scatter("MAX"),
    "ResourceScatterMin": _scatter("MIN"),
}
