"""What is said of the way of an input to the position where a training continues."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager

from cs_runtime.waiting import announced

log = logging.getLogger("cs_runtime")


@contextmanager
def told(batches: int, reads: str) -> Iterator[None]:
    """Says how the body goes to a position in the input, and how long that has taken where it reads.

    Args:
        batches: to be left out; for 0 nothing is said.
        reads: why they are read; "" where they are not.
    """
    if not batches or not reads:
        if batches:
            log.info("the input begins behind its first %d batches without making them", batches)
        yield
        return
    log.info("the input makes its first %d batches again and drops them, because of %s", batches, reads)
    began_s = time.monotonic()
    with announced(f"its first {batches} batches", "the input still drops"):
        yield
    log.info("the input has dropped its first %d batches in %.1f s", batches, time.monotonic() - began_s)


def told_from_state(batches: int, at: int) -> None:
    """Says that the input goes on from a state that an earlier run has kept, behind `at` batches."""
    rest = f" and reads {batches - at} more" if batches > at else ""
    log.info("the input goes on from its kept state behind %d batches%s", at, rest)
