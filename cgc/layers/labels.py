"""When two ops may be the same op of two copies of a layer."""

from __future__ import annotations

from collections.abc import Hashable, Sequence

from xdsl.ir import Attribute

from cgc.cirh.base import CirhOp
from cgc.cirh.random import SeededRandomOp

_OP_SEED = "op_seed"


def shared_properties(op: CirhOp) -> tuple[tuple[str, Attribute], ...]:
    """The attributes that copies of an op have in common: not its seed, which a layer gets as an argument."""
    is_seeded = isinstance(op, SeededRandomOp)
    return tuple(
        (name, value) for name, value in op.properties.items() if not (is_seeded and name == _OP_SEED)
    )


def labels(ops: Sequence[CirhOp]) -> list[Hashable]:
    """Of each op its class, attributes and types: equal for ops that may be copies of each other."""
    return [
        (
            type(op),
            shared_properties(op),
            tuple(operand.type for operand in op.operands),
            tuple(result.type for result in op.results),
        )
        for op in ops
    ]
