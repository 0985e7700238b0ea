"""When two ops may be the same op of two copies of a layer."""

from __future__ import annotations

from collections.abc import Hashable, Sequence

from cgc.cirh.base import CirhOp

OP_SEED = "op_seed"
"""What tells the random numbers of two layers apart; a layer gets it as an argument."""


def labels(ops: Sequence[CirhOp]) -> list[Hashable]:
    """Of each op its class, attributes and types: equal for ops that may be copies of each other."""
    return [
        (
            type(op),
            tuple((name, value) for name, value in op.properties.items() if name != OP_SEED),
            tuple(operand.type for operand in op.operands),
            tuple(result.type for result in op.results),
        )
        for op in ops
    ]
