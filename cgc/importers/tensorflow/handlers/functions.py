"""Calls of functions, imported in place."""

from __future__ import annotations

from typing import Any

from cgc.importers.tensorflow.node import NodeContext, Table, Value

_FUNCTION_ATTRIBUTES = {
    "PartitionedCall": ("f",),
    "StatefulPartitionedCall": ("f",),
    "If": ("then_branch", "else_branch"),
    "StatelessIf": ("then_branch", "else_branch"),
    "Case": ("branches",),
    "StatelessCase": ("branches",),
    "While": ("cond", "body"),
    "StatelessWhile": ("cond", "body"),
}
"""Op type -> attributes that name the functions it calls."""


def function_names(op: Any) -> list[str]:
    """The names of the functions that an operation calls, in the order of its attributes."""
    if is_named_call(op):
        return [op.type]
    names: list[str] = []
    for attribute in _FUNCTION_ATTRIBUTES.get(op.type, ()):
        found = op.get_attr(attribute)
        names += [function.name for function in (found if isinstance(found, list) else [found])]
    return names


def is_named_call(op: Any) -> bool:
    """Return True for a call in the form of TensorFlow 1: its type is the name of the function."""
    return bool(op.graph._is_function(op.type))


def call(node: NodeContext) -> list[Value]:
    """Import the function that an operation calls."""
    (function,) = function_names(node.op)
    # Where TensorFlow took a gradient, the body gives what that needs as well, behind the results.
    return node.call(function, node.inputs, node.name)[: len(node.op.outputs)]


TABLE: Table = {
    "PartitionedCall": call,
    "StatefulPartitionedCall": call,
}
