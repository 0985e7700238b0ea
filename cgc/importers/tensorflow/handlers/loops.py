"""Loops: the body as often as the loop turns.

How often must be known while the graph is imported. Where the data decides when a loop ends, but it has
`maximum_iterations`, all these turns are computed, and a select keeps what the last that takes place gives.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from xdsl.ir import SSAValue

from cgc.cirh import ops
from cgc.importers.faults import Kind, RefusedError
from cgc.importers.tensorflow.handlers.control_flow import choose
from cgc.importers.tensorflow.handlers.functions import function_names
from cgc.importers.tensorflow.node import POISON, NodeContext, Poison, Table, Value
from cgc.importers.tensorflow.variants import TensorList

TURNS_LIMIT = 1024
"""A loop of more turns is refused: each turn is a copy of its body in the program."""

_COUNTER, _MAXIMUM = 0, 1
"""The first two values of a loop of tf.while_loop: its turns so far, and its maximum_iterations or -1."""


@dataclass
class _Loop:
    """A While operation on its way through its turns."""

    node: NodeContext
    turn: int = 0

    def condition(self, values: Sequence[Value]) -> Value:
        (goes_on,) = self.node.call(function_names(self.node.op)[0], values, self._scope)
        return goes_on

    def body(self, values: Sequence[Value]) -> list[Value]:
        if self.turn == TURNS_LIMIT:
            raise RefusedError(
                Kind.USAGE,
                f"it turns more than {TURNS_LIMIT} times; every turn is a copy of its body in the program, "
                "so compute on whole tensors instead, or on longer pieces per turn",
            )
        results = self.node.call(function_names(self.node.op)[1], values, self._scope)
        self.turn += 1
        return results

    @property
    def _scope(self) -> str:
        return f"{self.node.name}[{self.turn}]"


def _while(node: NodeContext) -> list[Value]:
    loop, values = _Loop(node), list(node.inputs)
    while isinstance(goes_on := loop.condition(values), np.ndarray):
        if not goes_on.all():
            return values
        values = loop.body(values)
    if isinstance(goes_on, Poison):
        return [POISON] * len(values)
    turns = _turns_of_forward_loop(node, goes_on)
    if turns is not None:
        return _backwards(loop, values, turns)
    maximum = node.known(_MAXIMUM) if len(values) > _MAXIMUM else None
    if not isinstance(values[_COUNTER], np.ndarray) or maximum is None or maximum.ndim or maximum < 0:
        raise RefusedError(
            Kind.USAGE,
            f"whether it goes on after {loop.turn} turns depends on data of the run; loop over a Python "
            "number or a static shape, or give tf.while_loop a number of maximum_iterations",
        )
    return _bounded(loop, values)


def _bounded(loop: _Loop, values: list[Value]) -> list[Value]:
    """All turns that there may be; the results are those of the last one that takes place.

    The turns after it compute on as if the loop went on, and what they give is dropped.
    """
    node, kept = loop.node, values
    active = node.emit.constant(np.asarray(True))
    turns = [active] * loop.turn
    while not _is_over(goes_on := loop.condition(values)):
        if isinstance(goes_on, Poison):
            return [POISON] * len(values)
        if isinstance(goes_on, SSAValue):
            active = node.emit.binary(ops.AndOp, active, goes_on)
        turns.append(active)
        values = _turn(loop, values, active)
        kept = [_kept(node, active, new, old) for new, old in zip(values, kept, strict=True)]
    count = kept[_COUNTER]
    if isinstance(count, SSAValue):
        node.step.turns[count] = tuple(turns)
    return kept


def _is_over(goes_on: Value) -> bool:
    return isinstance(goes_on, np.ndarray) and not goes_on.all()


def _turn(loop: _Loop, values: Sequence[Value], active: SSAValue) -> list[Value]:
    """One turn, which changes variables only if it takes place."""
    step = loop.node.step
    before = dict(step.current)
    results = loop.body(values)
    step.current = {
        key: value if value is before[key] else loop.node.emit.select(active, value, before[key])
        for key, value in step.current.items()
    }
    return results


def _kept(node: NodeContext, active: SSAValue, new: Value, old: Value) -> Value:
    if new is POISON or old is POISON:
        return POISON
    if isinstance(new, TensorList) and _differ_in_length(new, old):
        return replace(new, is_open=True)
    return choose(node, active, new, old)


def _backwards(loop: _Loop, values: list[Value], turns: Sequence[SSAValue]) -> list[Value]:
    """The gradient of a bounded loop: its turns from the last that there may be, those that took place."""
    for active in reversed(turns):
        results = _turn(loop, values, active)
        values = [
            new
            if position == _COUNTER or new is POISON or _differ_in_length(new, old)
            else choose(loop.node, active, new, old)
            for position, (new, old) in enumerate(zip(results, values, strict=True))
        ]
    return values


def _differ_in_length(new: Value, old: Value) -> bool:
    """Whether a turn has put items at the end of a list, or taken some from there."""
    if not isinstance(new, TensorList) or not isinstance(old, TensorList):
        return False
    return len(new.items) != len(old.items)


def _turns_of_forward_loop(node: NodeContext, goes_on: Value) -> tuple[SSAValue, ...] | None:
    """Which turns of the forward loop took place, if the condition is that of its gradient.

    That is: as many turns as the forward loop had.
    """
    compared = goes_on.owner if isinstance(goes_on, SSAValue) else None
    if not isinstance(compared, ops.CompareOp) or compared.direction != "LT":
        return None
    return node.step.turns.get(compared.rhs)


TABLE: Table = {
    "While": _while,
    "StatelessWhile": _while,
}
