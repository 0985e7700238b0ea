"""What the lowerings of one kind of op are: a table from the class of an op to what computes it."""

from __future__ import annotations

from collections.abc import Callable

import jax

from cgc.cirh.base import CirhOp


def describe(op: CirhOp) -> str:
    """An op as messages name it: its kind, and its node and source line where they are known."""
    parts = [op.name]
    if op.node_name:
        parts.append(f"node {op.node_name!r}")
    if op.source:
        parts.append(op.source)
    return ", ".join(parts)


Lowered = jax.Array | tuple[jax.Array, ...]
Lowering = Callable[..., Lowered]
"""(op, the jax values of its operands) -> the value of its result, or a tuple where it has several.

It is pure and called under jax tracing.
"""

Table = dict[type[CirhOp], Lowering]


def plain(function: Callable[..., jax.Array]) -> Lowering:
    """A lowering that takes nothing from the op."""
    return lambda _op, *operands: function(*operands)
