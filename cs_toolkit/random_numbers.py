"""The generators of random numbers that all code of a process shares."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np


@contextmanager
def random_numbers_kept() -> Iterator[None]:
    """Those of Python and NumPy go on from where they are now, whatever is drawn or seeded inside."""
    plain, numpy = random.getstate(), np.random.get_state()
    try:
        yield
    finally:
        random.setstate(plain)
        np.random.set_state(numpy)
