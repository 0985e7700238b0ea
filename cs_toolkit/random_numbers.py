"""State of the random number generators that all code of a process shares."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np


@contextmanager
def preserve_random_state() -> Iterator[None]:
    """Restore the random states of Python and NumPy after the body."""
    plain, numpy = random.getstate(), np.random.get_state()
    try:
        yield
    finally:
        random.setstate(plain)
        np.random.set_state(numpy)
