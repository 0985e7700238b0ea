"""Calls of functions and branches, imported in place.

The device has no branches: both sides of a condition are computed, and a select keeps the values of one, for
results and variables alike.
"""

from __future__ import annotations

import numpy as np
from xdsl.ir import SSAValue

from cgc.importers.tensorflow.faults import Kind, RefusedError
from cgc.importers.tensorflow.node import POISON, NodeContext, Table, Value

FUNCTION_ATTRIBUTES = {
    "PartitionedCall": ("f",),
    "StatefulPartitionedCall": ("f",),
    "If": ("then_branch", "else_branch"),
    "StatelessIf": ("then_branch", "else_branch"),
}
"""Op type -> attributes that name the functions it calls."""


def _call(node: NodeContext) -> list[Value]:
    return node.call(node.op, "f", node.inputs)


def _if(node: NodeContext) -> list[Value]:
    known = node.known(0)
    arguments = node.inputs[1:]
    if known is not None:
        return node.call(node.op, "then_branch" if known.item() else "else_branch", arguments)
    condition = node.emit.cast(node.x(0), "bool")
    before = dict(node.step.current)
    on_true = node.call(node.op, "then_branch", arguments)
    after_true, node.step.current = node.step.current, before
    on_false = node.call(node.op, "else_branch", arguments)
    after_false = node.step.current
    node.step.current = {
        key: value if value is after_false[key] else node.emit.select(condition, value, after_false[key])
        for key, value in after_true.items()
    }
    return [_choose(node, condition, a, b) for a, b in zip(on_true, on_false, strict=True)]


def _choose(node: NodeContext, condition: SSAValue, on_true: Value, on_false: Value) -> Value:
    if on_true is POISON or on_false is POISON:
        return POISON
    if on_true is on_false or _same_constant(on_true, on_false):
        return on_true
    a, b = (node.emit.constant(v) if isinstance(v, np.ndarray) else v for v in (on_true, on_false))
    if not isinstance(a, SSAValue) or not isinstance(b, SSAValue):
        raise RefusedError(
            Kind.USAGE,
            "its branches give different variables, or tensors of a size that depends on the data; decide in "
            "Python which to use",
        )
    return node.emit.select(condition, a, b)


def _same_constant(a: Value, b: Value) -> bool:
    if not isinstance(a, np.ndarray) or not isinstance(b, np.ndarray):
        return False
    return a.dtype == b.dtype and np.array_equal(a, b)


TABLE: Table = {
    "PartitionedCall": _call,
    "StatefulPartitionedCall": _call,
    "If": _if,
    "StatelessIf": _if,
}
