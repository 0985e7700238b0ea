"""Python's search for garbage, kept away from what makes millions of objects that all stay.

A graph of TensorFlow, a module of the compiler and what `import tensorflow` leaves are objects that refer to
each other. Python walks all of them again and again while they are made, an eighth of the time of a
compilation.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

YOUNG_OBJECTS = 100_000
"""So many new objects start a search in the body of `seldom_searched`; it costs some milliseconds."""
_SEARCHES = 50
"""So many searches of younger objects start one of older ones."""


@contextmanager
def seldom_searched() -> Iterator[None]:
    """Few searches during the body, or during a function decorated with it; a program's own limits count if
    they mean fewer still."""
    before = gc.get_threshold()
    if before[0] > 0:  # with 0 there are no searches at all
        young, *older = before
        gc.set_threshold(max(young, YOUNG_OBJECTS), *(max(limit, _SEARCHES) for limit in older))
    try:
        yield
    finally:
        gc.set_threshold(*before)
