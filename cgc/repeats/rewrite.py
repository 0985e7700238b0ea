"""Run passes on a few copies of the block that repeats in a step, and expand the result."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from contextlib import suppress
from typing import TYPE_CHECKING, TypeAlias

from xdsl.dialects.builtin import StringAttr
from xdsl.ir import BlockArgument, Operation, OpResult, SSAValue

from cgc.cirh.base import NODE_NAME, CirhOp
from cgc.cirh.interface import graph_function
from cgc.cirh.module import copy_module, verify_module
from cgc.cirh.op_table import OpTable, are_equal
from cgc.errors import CompileError
from cgc.passes.pipeline import all_notify_watch, run_pipeline, should_verify
from cgc.passes.rewriting import notify_watch
from cgc.repeats.expand import expand_step
from cgc.repeats.find import CopiesDifferError
from cgc.repeats.shorten import ShortStep, shorten_step

if TYPE_CHECKING:
    from xdsl.dialects.builtin import ModuleOp

# (family, copy) of the repeating ops that an op was made from.
Origins: TypeAlias = frozenset[tuple[int, int]]

_NO_ORIGIN: Origins = frozenset()

# Numbers of copies to rewrite, tried in order; with few it may not be clear where to insert the others.
_SHORT_COPIES = 3, 4


def rewrite(module: ModuleOp, scanned: OpTable | None, pipeline: str) -> ModuleOp:
    """Return a rewritten copy of a module, equal to the result of the passes on the whole module.

    Args:
        module: a step; it is not changed.
        scanned: the same step as arrays.
        pipeline: names and options of the passes, in order.

    Raises:
        CompileError: see `run_pipeline`.
    """
    return _rewrite_short(module, scanned, pipeline) or _rewrite_whole(copy_module(module), pipeline)


def _rewrite_short(module: ModuleOp, scanned: OpTable | None, pipeline: str) -> ModuleOp | None:
    """Rewrite a short step and expand it; None unless blocks repeat and are rewritten in the same way."""
    if scanned is None:
        return None
    for copies in _SHORT_COPIES:
        # Errors are reported for the whole step, whose ops have names.
        with suppress(CopiesDifferError, CompileError):
            source = shorten_step(module, scanned, copies)
            if source is None:
                return None
            short, cross_copy = source.module, CrossCopyRewrites(source)
            with notify_watch(cross_copy):
                run_pipeline(short, pipeline)
            if not (all_notify_watch(pipeline) and cross_copy.are_uniform()):
                # The result may depend on the number of copies: numbers add up from copy to copy, negations
                # cancel out. Compare with the expansion of a step that has one copy fewer.
                fewer = source.rebuild().omit_another_copy()
                expected = expand_step(_rewrite_whole(fewer.module, pipeline), fewer)
                if not are_equal(graph_function(expected), graph_function(short)):
                    raise CopiesDifferError("the result of the passes depends on the number of copies")
            expanded = expand_step(short, source)
            if should_verify():
                verify_module(expanded)
            return expanded
    return None


def _rewrite_whole(module: ModuleOp, pipeline: str) -> ModuleOp:
    """Rewrite the module in place and return it."""
    run_pipeline(module, pipeline)
    return module


class CrossCopyRewrites:
    """Records rewrites across copies while the passes run on a short step.

    A rewrite within a copy is the same in all copies, however many there are. A rewrite that reads ops of two
    copies is uniform if the same happens between all neighbors and its result never meets a third copy.
    Numbers that add up from copy to copy do meet one, and negations cancel out between some neighbors only.
    """

    def __init__(self, source: ShortStep) -> None:
        self._op_copies = source.op_copies
        self._copied_arguments = {
            index for index, number in enumerate(source.arguments) if number in source.argument_copies
        }
        # Origins of the ops that passes have created or kept.
        self._origins: dict[Operation, Origins] = {}
        # By the first of two neighbors: how often a rewrite read these ops of both.
        self._between_neighbors = [Counter[Origins]() for _ in range(source.copies - 1)]
        self._reads_distant_copies = False

    def record_rewrite(self, read: Iterable[Operation], created: Iterable[Operation]) -> None:
        """Record the origins of a rewrite."""
        origins = _NO_ORIGIN.union(*map(self._origins_of, read))
        for op in created:
            self._origins[op] = origins
        copies = {copy for _, copy in origins}
        if len(copies) < 2:
            return
        first = min(copies)
        if max(copies) > first + 1:
            self._reads_distant_copies = True
        else:
            self._between_neighbors[first][frozenset((family, copy - first) for family, copy in origins)] += 1

    def record_merge(self, op: CirhOp, kept: CirhOp) -> None:
        """Record a merge. An op that all copies compute from the same values belongs to none of them."""
        if all(map(self._is_shared, op.operand_values)):
            self._origins[kept] = _NO_ORIGIN
        else:
            self.record_rewrite((op, kept), (kept,))

    def are_uniform(self) -> bool:
        """Return True if adding a copy leaves every rewrite unchanged."""
        return not self._reads_distant_copies and all(
            counts == self._between_neighbors[0] for counts in self._between_neighbors
        )

    def _origins_of(self, op: Operation) -> Origins:
        known = self._origins.get(op)
        if known is None:
            name = op.attributes.get(NODE_NAME)
            origin = self._op_copies.get(int(name.data)) if isinstance(name, StringAttr) else None
            known = self._origins[op] = _NO_ORIGIN if origin is None else frozenset((origin,))
        return known

    def _is_shared(self, value: SSAValue) -> bool:
        if isinstance(value, OpResult):
            return not self._origins_of(value.op)
        return isinstance(value, BlockArgument) and value.index not in self._copied_arguments
