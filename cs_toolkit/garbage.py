"""Python's search for garbage, kept away from what makes millions of objects that all stay.

A graph of TensorFlow, a module of the compiler and what `import tensorflow` leaves are objects that refer to
each other. Python walks all of them again and again while they are made, and frees them one by one when the
process ends: a fifth of the time of a compilation.
"""

from __future__ import annotations

import atexit
import gc
import io
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache

YOUNG_OBJECTS = 1_000_000
"""So many new objects start a search in the body of `seldom_searched`; to trace and compile a network of 32
layers makes fewer. A search of a tenth of them took 20 ms, and freed a few megabytes of a gigabyte."""

_SEARCHES = 50
"""So many searches of younger objects start one of older ones."""

_SERVER_YOUNG_OBJECTS = 100_000
"""As `YOUNG_OBJECTS`, in a process that stays: a search takes milliseconds, and little waits to be freed."""

_was_frozen = False

_BUFFERED = (io.TextIOWrapper, io.BufferedWriter, io.BufferedRandom)
_STANDARD_STREAMS = (0, 1, 2)


@contextmanager
def seldom_searched() -> Iterator[None]:
    """Few searches during the body, or during a function decorated with it.

    What is there when it begins or ends is not searched as new. A program's own limits stay where they mean
    fewer searches still.
    """
    before = gc.get_threshold()
    young, *older = before
    if young == 0:  # never searched
        yield
        return
    _spare_what_is_there()
    gc.set_threshold(max(young, YOUNG_OBJECTS), *(max(limit, _SEARCHES) for limit in older))
    try:
        yield
    finally:
        gc.set_threshold(*before)
        _spare_what_is_there()


def search_seldom() -> None:
    """From now on a process that stays, such as a server, searches for garbage seldom.

    JAX and XLA make objects by the hundred thousand while a program is compiled, and few are garbage: the
    usual searches were a tenth of the CPU time of a CS system that trains for some steps.
    """
    gc.set_threshold(_SERVER_YOUNG_OBJECTS, _SEARCHES, _SEARCHES)


def _spare_what_is_there() -> None:
    """Counts all objects among the oldest, without a search."""
    if not _something_is_frozen():  # else it would be frozen no more
        gc.freeze()
        gc.unfreeze()


def _something_is_frozen() -> bool:
    """Whether a program keeps objects out of all searches, or has done so."""
    global _was_frozen
    # Python counts such objects one by one: 50 ms for the millions of a process of tests.
    _was_frozen = _was_frozen or gc.get_freeze_count() > 0
    return _was_frozen


@cache
def leave_at_exit() -> None:
    """From now on this process leaves what is in its memory to the operating system when it ends.

    For a run that has written all that it has to write. Python then finalizes no objects in cycles, to which
    the global variables of a module belong too. If a file is open for writing, one of them may have to close
    it: then everything is freed as usual.
    """
    atexit.register(_leave)


def _leave() -> None:
    things = gc.get_objects()
    # Of types, not of objects: that would take a fifth of a second for the million of a large graph.
    buffered = tuple(kind for kind in set(map(type, things)) if issubclass(kind, _BUFFERED))
    if not any(_is_open_for_writing(thing) for thing in things if type(thing) in buffered):
        gc.freeze()


def _is_open_for_writing(thing: object) -> bool:
    # Asked after the type alone: isinstance asks an object for its class, which may load modules.
    if not isinstance(thing, _BUFFERED):
        return False
    try:
        return thing.writable() and thing.fileno() not in _STANDARD_STREAMS
    except (OSError, ValueError):  # closed, detached, or none of the operating system's
        return False
