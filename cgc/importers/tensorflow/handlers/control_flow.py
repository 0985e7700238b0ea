"""Calls, branches and loops: functions are inlined, all branches are computed, and loops are unrolled.

The device has no branches, so all sides of a condition are computed, and a select keeps the values of one
side, for results and variables alike. The number of iterations of a loop must be known while the graph is
imported. Where the data decides when a loop ends, but it has `maximum_iterations`, all of these are computed,
and a select keeps the values of the last one that takes place.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from xdsl.ir import SSAValue

from cgc.cirh import ops
from cgc.importers.diagnostics import Kind, RefusedError
from cgc.importers.tensorflow.node import (
    MISSING,
    POISON,
    Either,
    NodeContext,
    Optional,
    Poison,
    Table,
    TensorList,
    Value,
)

# Op type -> attributes that name the functions it calls.
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


def function_names(op: Any) -> list[str]:
    """Return the names of the functions that an operation calls, in the order of its attributes."""
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
    # If TensorFlow took a gradient, the body also returns the values that it needs, after the results.
    return node.call(function, node.inputs, node.name)[: len(node.op.outputs)]


def _if(node: NodeContext) -> list[Value]:
    branches = function_names(node.op)
    known = node.known(0)
    if known is None:
        return _one_of(node, [node.emit.cast(node.x(0), "bool")], branches)
    # As TensorFlow's ToBool: a tensor of a rank above 0 is true if it has elements.
    is_true = bool(known.item()) if known.ndim == 0 else known.size > 0
    return node.call(branches[0 if is_true else 1], node.inputs[1:], node.name)


def _case(node: NodeContext) -> list[Value]:
    """Return the branch of a number; the last one for a number that has none."""
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
    """Import all branches from one state; keep the results of the first true condition, or the last."""
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
    node.step.current = {key: _select(node, conditions, [state[key] for state in states]) for key in before}
    return [_merge_branches(node, conditions, options) for options in zip(*results, strict=True)]


def _select(node: NodeContext, conditions: Sequence[SSAValue], options: Sequence[SSAValue]) -> SSAValue:
    *others, chosen = options
    for condition, option in zip(reversed(conditions), reversed(others), strict=True):
        chosen = chosen if option is chosen else node.emit.select(condition, option, chosen)
    return chosen


def _merge_branches(node: NodeContext, conditions: Sequence[SSAValue], options: Sequence[Value]) -> Value:
    """Merge the values of the branches into one."""
    if any(option is POISON for option in options):
        return POISON
    if any(isinstance(option, Optional | Either) for option in options):
        return Either(node.x(0), tuple(options))
    *others, chosen = options
    for condition, option in zip(reversed(conditions), reversed(others), strict=True):
        chosen = choose(node, condition, option, chosen)
    return chosen


def choose(node: NodeContext, condition: SSAValue, on_true: Value, on_false: Value) -> Value:
    """Return one of two values; equal values, or one that exists on one side only, need no select."""
    if on_true is on_false:
        return on_true
    if (
        isinstance(on_true, np.ndarray)
        and isinstance(on_false, np.ndarray)
        and on_true.dtype == on_false.dtype
        and np.array_equal(on_true, on_false)
    ):
        return on_true
    # A value of one side only is for the same side of another condition: that of its gradient.
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
    """Return one of two items of a list; a missing item is zero."""
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
        "its branches return different variables, or tensors or lists of a size that depends on the data; "
        "choose in Python which to use",
    )


# A loop of more iterations is refused: each iteration is a copy of its body in the program.
ITERATIONS_LIMIT = 1024

# The first two values of a loop of tf.while_loop: its iterations so far, and the maximum or -1.
_COUNTER, _MAXIMUM = 0, 1


@dataclass
class _Loop:
    """A While operation that is being unrolled."""

    node: NodeContext
    count: int = 0

    def condition(self, values: Sequence[Value]) -> Value:
        (goes_on,) = self.node.call(function_names(self.node.op)[0], values, self._scope)
        return goes_on

    def body(self, values: Sequence[Value]) -> list[Value]:
        if self.count == ITERATIONS_LIMIT:
            raise RefusedError(
                Kind.USAGE,
                f"it runs more than {ITERATIONS_LIMIT} times; every iteration is a copy of its body in the "
                "program, so compute on whole tensors instead, or on longer pieces per iteration",
            )
        results = self.node.call(function_names(self.node.op)[1], values, self._scope)
        self.count += 1
        return results

    @property
    def _scope(self) -> str:
        return f"{self.node.name}[{self.count}]"


def _while(node: NodeContext) -> list[Value]:
    loop, values = _Loop(node), list(node.inputs)
    while isinstance(goes_on := loop.condition(values), np.ndarray):
        if not goes_on.all():
            return values
        values = loop.body(values)
    if isinstance(goes_on, Poison):
        return [POISON] * len(values)
    iterations = _forward_iterations(node, goes_on)
    if iterations is not None:
        return _import_gradient(loop, values, iterations)
    maximum = node.known(_MAXIMUM) if len(values) > _MAXIMUM else None
    if not isinstance(values[_COUNTER], np.ndarray) or maximum is None or maximum.ndim or maximum < 0:
        raise RefusedError(
            Kind.USAGE,
            f"whether it continues after {loop.count} iterations depends on data of the run; loop over a "
            "Python number or a static shape, or give tf.while_loop a number of maximum_iterations",
        )
    return _unroll_bounded(loop, values)


def _unroll_bounded(loop: _Loop, values: list[Value]) -> list[Value]:
    """Import all iterations that are possible; the results are those of the last one that takes place.

    The iterations after it compute as if the loop continued, and their results are dropped.
    """
    node, kept = loop.node, values
    active = node.emit.constant(np.asarray(True))
    iterations = [active] * loop.count
    while True:
        goes_on = loop.condition(values)
        if isinstance(goes_on, np.ndarray) and not goes_on.all():
            break
        if isinstance(goes_on, Poison):
            return [POISON] * len(values)
        if isinstance(goes_on, SSAValue):
            active = node.emit.binary(ops.AndOp, active, goes_on)
        iterations.append(active)
        values = _import_iteration(loop, values, active)
        kept = [_keep_last(node, active, new, old) for new, old in zip(values, kept, strict=True)]
    count = kept[_COUNTER]
    if isinstance(count, SSAValue):
        node.step.iterations[count] = tuple(iterations)
    return kept


def _import_iteration(loop: _Loop, values: Sequence[Value], active: SSAValue) -> list[Value]:
    """Import one iteration, which changes variables only if it takes place."""
    step = loop.node.step
    before = dict(step.current)
    results = loop.body(values)
    step.current = {
        key: value if value is before[key] else loop.node.emit.select(active, value, before[key])
        for key, value in step.current.items()
    }
    return results


def _keep_last(node: NodeContext, active: SSAValue, new: Value, old: Value) -> Value:
    if new is POISON or old is POISON:
        return POISON
    if isinstance(new, TensorList) and _differ_in_length(new, old):
        return replace(new, is_open=True)
    return choose(node, active, new, old)


def _import_gradient(loop: _Loop, values: list[Value], iterations: Sequence[SSAValue]) -> list[Value]:
    """Import the gradient of a bounded loop: its iterations that took place, from the last possible one."""
    for active in reversed(iterations):
        results = _import_iteration(loop, values, active)
        values = [
            new
            if position == _COUNTER or new is POISON or _differ_in_length(new, old)
            else choose(loop.node, active, new, old)
            for position, (new, old) in enumerate(zip(results, values, strict=True))
        ]
    return values


def _differ_in_length(new: Value, old: Value) -> bool:
    """Return whether an iteration has added items to the end of a list, or removed some."""
    if not isinstance(new, TensorList) or not isinstance(old, TensorList):
        return False
    return len(new.items) != len(old.items)


def _forward_iterations(node: NodeContext, goes_on: Value) -> tuple[SSAValue, ...] | None:
    """Return the iterations of the forward loop that took place, if the condition is of its gradient."""
    compared = goes_on.owner if isinstance(goes_on, SSAValue) else None
    if not isinstance(compared, ops.CompareOp) or compared.direction != "LT":
        return None
    return node.step.iterations.get(compared.rhs)


TABLE: Table = {
    "PartitionedCall": call,
    "StatefulPartitionedCall": call,
    "If": _if,
    "StatelessIf": _if,
    "Case": _case,
    "StatelessCase": _case,
    "While": _while,
    "StatelessWhile": _while,
}
