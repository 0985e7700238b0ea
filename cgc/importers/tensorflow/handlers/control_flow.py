"""Branches: the device runs straight on, so all sides of a condition are computed.

A select keeps the values of one side, for results and variables alike.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from xdsl.ir import SSAValue

from cgc.importers.faults import Kind, RefusedError
from cgc.importers.tensorflow.handlers.functions import function_names
from cgc.importers.tensorflow.node import POISON, NodeContext, Table, Value
from cgc.importers.tensorflow.variants import MISSING, Either, Optional, TensorList


def _if(node: NodeContext) -> list[Value]:
    branches = function_names(node.op)
    known = node.known(0)
    if known is None:
        return _one_of(node, [node.emit.cast(node.x(0), "bool")], branches)
    # As TensorFlow's ToBool: a tensor of a rank above 0 is true if it has elements.
    is_true = bool(known.item()) if known.ndim == 0 else known.size > 0
    return node.call(branches[0 if is_true else 1], node.inputs[1:], node.name)


def _case(node: NodeContext) -> list[Value]:
    """The branch of a number; the last one for a number that has none."""
    branches = function_names(node.op)
    known = node.known(0)
    if known is None:
        numbers = [node.emit.constant(np.asarray(i, np.int32)) for i in range(len(branches) - 1)]
        conditions = [node.emit.compare("EQ", node.x(0), number) for number in numbers]
        return _one_of(node, conditions, branches)
    number = int(known.item())
    chosen = branches[number if 0 <= number < len(branches) else -1]
    return node.call(chosen, node.inputs[1:], node.name)


def _one_of(node: NodeContext, conditions: Sequence[SSAValue], branches: Sequence[str]) -> list[Value]:
    """Imports all branches from one state; keeps what the first with a true condition gives, or the last."""
    before, selector = node.step.current, node.x(0)
    if selector in node.step.branches:
        # Inside of a branch that the same value has chosen.
        return node.call(branches[node.step.branches[selector]], node.inputs[1:], node.name)
    results: list[list[Value]] = []
    states: list[dict[str, SSAValue]] = []
    for position, branch in enumerate(branches):
        node.step.current = dict(before)
        node.step.branches[selector] = position
        results.append(node.call(branch, node.inputs[1:], f"{node.name}[{position}]"))
        states.append(node.step.current)
    del node.step.branches[selector]
    node.step.current = {key: _selected(node, conditions, [state[key] for state in states]) for key in before}
    return [_joined(node, conditions, options) for options in zip(*results, strict=True)]


def _selected(node: NodeContext, conditions: Sequence[SSAValue], options: Sequence[SSAValue]) -> SSAValue:
    *others, chosen = options
    for condition, option in zip(reversed(conditions), reversed(others), strict=True):
        chosen = chosen if option is chosen else node.emit.select(condition, option, chosen)
    return chosen


def _joined(node: NodeContext, conditions: Sequence[SSAValue], options: Sequence[Value]) -> Value:
    """One value of what the branches gave."""
    if any(option is POISON for option in options):
        return POISON
    if any(isinstance(option, Optional | Either) for option in options):
        return Either(node.x(0), tuple(options))
    *others, chosen = options
    for condition, option in zip(reversed(conditions), reversed(others), strict=True):
        chosen = choose(node, condition, option, chosen)
    return chosen


def choose(node: NodeContext, condition: SSAValue, on_true: Value, on_false: Value) -> Value:
    """One of two values; what is the same or there only once is taken without a select."""
    if on_true is on_false or _same_constant(on_true, on_false):
        return on_true
    # What one side alone gives is for the same side of another condition: that of its gradient.
    if on_true is MISSING or on_false is MISSING:
        return on_false if on_true is MISSING else on_true
    if isinstance(on_true, TensorList) and isinstance(on_false, TensorList):
        if len(on_true.items) != len(on_false.items):
            raise _different_kinds()
        pairs = zip(on_true.items, on_false.items, strict=True)
        items = tuple(_choose_item(node, condition, a, b) for a, b in pairs)
        return TensorList(items, on_true.dtype, on_true.is_open or on_false.is_open)
    a, b = (node.emit.constant(v) if isinstance(v, np.ndarray) else v for v in (on_true, on_false))
    if not isinstance(a, SSAValue) or not isinstance(b, SSAValue) or a.type != b.type:
        raise _different_kinds()
    return node.emit.select(condition, a, b)


def _choose_item(node: NodeContext, condition: SSAValue, on_true: Value, on_false: Value) -> Value:
    """One of two items of a list; where nothing was put there is zero."""
    if on_true is None or on_false is None:
        there = on_false if on_true is None else on_true
        if not isinstance(there, SSAValue | np.ndarray):
            return there
        zeros = np.zeros_like(there) if isinstance(there, np.ndarray) else node.emit.like(0, there)
        on_true, on_false = (zeros if item is None else item for item in (on_true, on_false))
    return choose(node, condition, on_true, on_false)


def _different_kinds() -> RefusedError:
    return RefusedError(
        Kind.USAGE,
        "it gives different variables, or tensors or lists of a size that depends on the data; decide in "
        "Python which to use",
    )


def _same_constant(a: Value, b: Value) -> bool:
    if not isinstance(a, np.ndarray) or not isinstance(b, np.ndarray):
        return False
    return a.dtype == b.dtype and np.array_equal(a, b)


TABLE: Table = {
    "If": _if,
    "StatelessIf": _if,
    "Case": _case,
    "StatelessCase": _case,
}
