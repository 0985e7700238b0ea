"""Whether the body of a loop did on the device what it did in its first turn."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from cgc.importers.aten import Graph, Node

_CURE = (
    "the step is compiled once, from the first turn. Numbers that change belong into tensors: learning rates "
    "into a schedule of cbtorch.optim.lr_scheduler; what differs between steps otherwise belongs into a step "
    "closure"
)


def difference(first: Graph, again: Graph, nodes: int) -> str | None:
    """What a later recording of a step does otherwise than the first one; None where nothing.

    Args:
        first: of the first turn.
        again: of a later one.
        nodes: how many of the first are the program's.
    """
    expected = first.nodes[:nodes]
    for old, new in zip(expected, again.nodes, strict=False):
        if _facts(old) != _facts(new):
            return f"{_line(new)}: {_named(new)} stands where the first turn had {_named(old)}; {_CURE}"
    if nodes != len(again.nodes):
        longer = max(expected, again.nodes, key=len)
        extra = longer[min(nodes, len(again.nodes))]
        who = "this turn alone" if longer is again.nodes else "the first turn alone"
        return f"{_line(extra)}: {_named(extra)} is in {who}; {_CURE}"
    for key, constant in first.constants.items():
        if not np.array_equal(constant.array, again.constants[key].array):
            user = next((node for node in again.nodes if _takes(node, key)), None)
            where = "line unknown" if user is None else _line(user)
            return f"{where}: a tensor of this CPU has other elements than in the first turn; {_CURE}"
    if first.updates != again.updates:
        return f"the body of the loop writes other state than in its first turn; {_CURE}"
    return None


def _facts(node: Node) -> Any:
    return node.op, node.arguments, node.results


def _named(node: Node) -> str:
    numbers = [f"{name}={value}" for name, value in node.arguments.items() if isinstance(value, int | float)]
    return f"{node.op}({', '.join(numbers)})"


def _line(node: Node) -> str:
    return node.source or "line unknown"


def _takes(node: Node, key: int) -> bool:
    return any(getattr(value, "id", None) == key for value in node.arguments.values())
