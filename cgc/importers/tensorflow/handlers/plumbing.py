"""Ops that compute nothing: constants, identities, checks and summaries."""

from __future__ import annotations

import tensorflow as tf

from cgc.importers.faults import Kind, RefusedError
from cgc.importers.tensorflow.node import NodeContext, Table, Value

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
"""Op types that act on the host only; they and what only they need are left out of a step."""


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
            "this resource is no tf.Variable (it is a table, an iterator or a queue); what it gives belongs "
            "in the input function",
        )
    raise RefusedError(
        Kind.USAGE, "this placeholder is no input of the step; take the tensor from the features or labels"
    )


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
}
