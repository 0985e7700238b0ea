"""Runs passes on one copy of what repeats in a step."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

from cgc.cirh.interface import graph_function
from cgc.cirh.module import copied, verify_module
from cgc.cirh.op_table import Scan, are_equal
from cgc.errors import CompileError
from cgc.folding.crossings import Crossings
from cgc.folding.families import NotFoldedError
from cgc.folding.fold import Folded, folded
from cgc.folding.unfold import unfolded
from cgc.passes.pipeline import run_pipeline, tells_all, verification_wanted
from cgc.passes.watch import watched_by

if TYPE_CHECKING:
    from xdsl.dialects.builtin import ModuleOp


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
