"""When two ops may be the same op of two copies of a block."""

from __future__ import annotations

from collections.abc import Iterable

from xdsl.ir import Attribute

from cgc.cirh.base import ORIGIN, CirhOp
from cgc.cirh.random import SeededRandomOp

OP_SEED = "op_seed"
"""The one attribute in which copies differ: of an op that draws random numbers."""


class OpLabels:
    """Numbers for ops: equal for equal classes, attributes and types, wherever the ops come from.

    Equal attributes are mostly one object, and to hash them takes long: they are compared by identity first.
    The ops must live as long as this.
    """

    def __init__(self) -> None:
        self._by_id: dict[tuple[object, ...], int] = {}
        self._by_value: dict[tuple[object, ...], int] = {}

    def label(self, op: CirhOp, types: Iterable[int]) -> int:
        """The number of an op.

        Args:
            op: the op.
            types: the identities of the types of its operands, and behind them those of its results.
        """
        own, others = op.properties, op.attributes
        key = (type(op), len(op.results), *own, *map(id, own.values()), *types)
        if not others.keys() <= ORIGIN:
            key += tuple((name, id(value)) for name, value in others.items() if name not in ORIGIN)
        found = self._by_id.get(key)
        if found is None:
            found = self._by_id[key] = self._by_value.setdefault(_essence(op), len(self._by_value))
        return found


def shared_attributes(op: CirhOp) -> dict[str, Attribute]:
    """What copies of an op have in common besides their types: not their seed, nor where they come from."""
    own: dict[str, Attribute] = dict(op.properties)
    if isinstance(op, SeededRandomOp):
        del own[OP_SEED]
    return own | {name: value for name, value in op.attributes.items() if name not in ORIGIN}


def _essence(op: CirhOp) -> tuple[object, ...]:
    return (
        type(op),
        frozenset(shared_attributes(op).items()),
        tuple(operand.type for operand in op.operand_values),
        tuple(result.type for result in op.results),
    )
