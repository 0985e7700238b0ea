"""Whoever wants to know what passes rewrite."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Protocol

from xdsl.ir import Operation

from cgc.cirh.base import CirhOp


class Watch(Protocol):
    """Is told what the passes of `cgc.passes` that rewrite ops do."""

    def rewritten(self, seen: Iterable[Operation], made: Iterable[Operation]) -> None:
        """Ops, some of which go, have become others.

        Args:
            seen: those that the rewrite has looked at, before anything is changed.
            made: the new ones, if any; they need not be complete yet.
        """
        ...

    def merged(self, op: CirhOp, kept: CirhOp) -> None:
        """An op goes because another one computes the same."""
        ...


_WATCH: ContextVar[Watch | None] = ContextVar("watch", default=None)


@contextmanager
def watched_by(watch: Watch) -> Iterator[None]:
    """Passes that run in the block tell what they do."""
    token = _WATCH.set(watch)
    try:
        yield
    finally:
        _WATCH.reset(token)


def current_watch() -> Watch | None:
    """Who is told what passes do, if anybody is."""
    return _WATCH.get()
