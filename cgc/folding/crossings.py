"""Which copies of a block the passes bring together."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import TypeAlias

from xdsl.dialects.builtin import StringAttr
from xdsl.ir import BlockArgument, Operation, OpResult, SSAValue

from cgc.cirh.base import NODE_NAME, CirhOp
from cgc.folding.fold import Folded

Origins: TypeAlias = frozenset[tuple[int, int]]
"""Family and copy of the ops of copies that something is made of."""

_NOWHERE: Origins = frozenset()


class Crossings:
    """Watches the passes rewrite a step without most copies of its block.

    A rewrite within a copy is the same in all copies, however many there are. One that sees ops of two copies
    is so if the same happens between all neighbours and nothing that it has made meets a third copy: numbers
    that add up from copy to copy do, and negations that cancel each other out do so between some alone.
    """

    def __init__(self, source: Folded) -> None:
        self._op_copies = source.op_copies
        self._of_copies = {
            index for index, number in enumerate(source.arguments) if number in source.argument_copies
        }
        self._origins: dict[Operation, Origins] = {}
        """Of ops that passes have made or kept."""
        self._between = [Counter[Origins]() for _ in range(source.kept - 1)]
        """What was seen together, from the first of two copies on."""
        self._is_far = False

    def rewritten(self, seen: Iterable[Operation], made: Iterable[Operation]) -> None:
        """See `cgc.passes.watch.Watch`."""
        origins = _NOWHERE.union(*map(self._of, seen))
        for op in made:
            self._origins[op] = origins
        self._note(origins)

    def merged(self, op: CirhOp, kept: CirhOp) -> None:
        """See `cgc.passes.watch.Watch`. What all copies make of the same values belongs to none."""
        if all(map(self._is_shared, op.operand_values)):
            self._origins[kept] = _NOWHERE
        else:
            self.rewritten((op, kept), (kept,))

    def are_alike(self) -> bool:
        """Whether one more copy changes nothing but that it is there."""
        return not self._is_far and all(one == self._between[0] for one in self._between)

    def _note(self, origins: Origins) -> None:
        copies = {copy for _, copy in origins}
        if len(copies) < 2:
            return
        first = min(copies)
        if max(copies) > first + 1:
            self._is_far = True
        else:
            self._between[first][frozenset((family, copy - first) for family, copy in origins)] += 1

    def _of(self, op: Operation) -> Origins:
        known = self._origins.get(op)
        if known is None:
            name = op.attributes.get(NODE_NAME)
            place = self._op_copies.get(int(name.data)) if isinstance(name, StringAttr) else None
            known = self._origins[op] = _NOWHERE if place is None else frozenset((place,))
        return known

    def _is_shared(self, value: SSAValue) -> bool:
        if isinstance(value, OpResult):
            return not self._of(value.op)
        return isinstance(value, BlockArgument) and value.index not in self._of_copies
