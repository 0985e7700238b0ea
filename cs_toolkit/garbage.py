"""Less frequent garbage collection for code that creates millions of long-lived objects.

A graph of TensorFlow, a module of the compiler and `import tensorflow` are such objects, with references to
each other. Python traverses all of them again and again while they are created, and frees them one by one
when the process ends: a fifth of the time of a compile.
"""

from __future__ import annotations

import atexit
import gc
import io
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache

# Number of new objects that starts a collection in `infrequent_collection`. Tracing and compiling a network
# of 32 layers creates fewer. A collection after a tenth of them took 20 ms and freed a few MB of 1 GB.
YOUNG_OBJECTS = 1_000_000
_COLLECTIONS = 50  # of a younger generation that start one of the next older generation
# The same for a server: a collection takes milliseconds, and little memory waits to be freed.
_SERVER_YOUNG_OBJECTS = 100_000

_usual_threshold = gc.get_threshold()
_was_frozen = False

_BUFFERED = (io.TextIOWrapper, io.BufferedWriter, io.BufferedRandom)
_STANDARD_STREAMS = (0, 1, 2)


@contextmanager
def infrequent_collection() -> Iterator[None]:
    """Collect garbage infrequently in the body, or in a function decorated with it.

    Objects that exist at its start or end are treated as old. Higher thresholds of a program are kept.
    """
    before = gc.get_threshold()
    young, *older = before
    if young == 0:  # collection is disabled
        yield
        return
    _age_all_objects()
    gc.set_threshold(max(young, YOUNG_OBJECTS), *(max(limit, _COLLECTIONS) for limit in older))
    try:
        yield
    finally:
        gc.set_threshold(*before)
        _age_all_objects()


def use_infrequent_collection() -> None:
    """Collect garbage infrequently from now on, for a server that starts or compiles."""
    # JAX and XLA create hundreds of thousands of objects in a compile, few of them garbage: default
    # collections took a tenth of the CPU time of a CS system that trains for some steps.
    gc.set_threshold(_SERVER_YOUNG_OBJECTS, _COLLECTIONS, _COLLECTIONS)


def freeze_objects() -> None:
    """Exclude all present objects from collections, and collect others as often as Python usually does.

    For a server that is set up, and imports and compiles nothing more.
    """
    # A collection of the others takes less than 1 ms; with the objects of modules it took 60. With the limits
    # of `use_infrequent_collection` a CS system kept the garbage of 800 jobs, which gRPC makes in every call.
    gc.freeze()
    gc.set_threshold(*_usual_threshold)
    # Python collects the oldest generation when it has grown by a quarter since its last collection: without
    # this one, by a quarter of the objects that are frozen now.
    gc.collect()


def _age_all_objects() -> None:
    """Move all objects to the oldest generation, without a collection."""
    if not _has_frozen_objects():  # otherwise the program's frozen objects would be unfrozen
        gc.freeze()
        gc.unfreeze()


def _has_frozen_objects() -> bool:
    """Return True if a program has ever frozen objects."""
    global _was_frozen
    # Python counts frozen objects one by one: 50 ms for the millions of a test process.
    _was_frozen = _was_frozen or gc.get_freeze_count() > 0
    return _was_frozen


@cache
def leave_at_exit() -> None:
    """Have this process end without freeing its objects.

    Python then does not finalize objects in cycles, among them the global variables of modules. If a file is
    open for writing, such an object may have to close it; objects are then freed as usual.
    """
    atexit.register(_leave)


def _leave() -> None:
    objects = gc.get_objects()
    # Filtered by type first: isinstance for the million objects of a large graph takes 0.2 s.
    buffered = tuple(kind for kind in set(map(type, objects)) if issubclass(kind, _BUFFERED))
    if not any(_is_open_for_writing(each) for each in objects if type(each) in buffered):
        gc.freeze()


def _is_open_for_writing(thing: object) -> bool:
    # Called only for these types: isinstance reads __class__, which may load modules.
    if not isinstance(thing, _BUFFERED):
        return False
    try:
        return thing.writable() and thing.fileno() not in _STANDARD_STREAMS
    except (OSError, ValueError):  # closed, detached, or without a descriptor
        return False
