"""Runs passes on one copy of what repeats in a step."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from contextlib import suppress
from typing import TYPE_CHECKING, TypeAlias

from xdsl.dialects.builtin import StringAttr
from xdsl.ir import BlockArgument, Operation, OpResult, SSAValue

from cgc.cirh.base import NODE_NAME, CirhOp
from cgc.cirh.interface import graph_function
from cgc.cirh.module import copied, verify_module
from cgc.cirh.op_table import Scan, are_equal
from cgc.errors import CompileError
from cgc.passes.pipeline import run_pipeline, tells_all, verification_wanted
from cgc.passes.rewriting import watched_by
from cgc.repeats.expand import unfolded
from cgc.repeats.find import NotFoldedError
from cgc.repeats.shorten import Folded, folded

if TYPE_CHECKING:
    from xdsl.dialects.builtin import ModuleOp

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
        """See `cgc.passes.rewriting.Watch`."""
        origins = _NOWHERE.union(*map(self._of, seen))
        for op in made:
            self._origins[op] = origins
        self._note(origins)

    def merged(self, op: CirhOp, kept: CirhOp) -> None:
        """See `cgc.passes.rewriting.Watch`. What all copies make of the same values belongs to none."""
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


_KEPT = 3, 4
"""So many copies are rewritten, and one less to see what one more makes of them. With few of them it may not
be clear where others come in."""


def rewrite(module: ModuleOp, scanned: Scan | None, pipeline: str) -> ModuleOp:
    """A rewritten copy of a module, equal to what the passes make of a whole copy.

    Args:
        module: a step; it is not changed.
        scanned: the same as integers.
        pipeline: names and options of the passes, in order.

    Raises:
        CompileError: see `run_pipeline`.
    """
    return _folded(module, scanned, pipeline) or _whole(copied(module), pipeline)


def _folded(module: ModuleOp, scanned: Scan | None, pipeline: str) -> ModuleOp | None:
    """The same where blocks repeat and are rewritten alike; else None."""
    if scanned is None:
        return None
    for kept in _KEPT:
        with suppress(NotFoldedError, CompileError):  # errors are told of the whole step: its ops have names
            source = folded(module, scanned, kept)
            if source is None:
                return None
            short, crossings = source.module, Crossings(source)
            with watched_by(crossings):
                run_pipeline(short, pipeline)
            if not (tells_all(pipeline) and crossings.are_alike()):
                _check(short, source.again(), pipeline)
            made = unfolded(short, source)
            if verification_wanted():
                verify_module(made)
            return made
    return None


def _check(short: ModuleOp, source: Folded, pipeline: str) -> None:
    """Compares what is left of a step with what `unfolded` makes of one copy less.

    It may depend on how many copies there are: numbers add up from copy to copy, and negations cancel each
    other out.

    Args:
        short: some copies, rewritten.
        source: the same as they were.
        pipeline: the passes.

    Raises:
        NotFoldedError: they differ.
    """
    fewer = source.shorter()
    expected = unfolded(_whole(fewer.module, pipeline), fewer)
    if not are_equal(graph_function(expected), graph_function(short)):
        raise NotFoldedError("what the passes make depends on the number of copies")


def _whole(module: ModuleOp, pipeline: str) -> ModuleOp:
    """The module itself, rewritten."""
    run_pipeline(module, pipeline)
    return module
