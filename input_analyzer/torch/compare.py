"""Rates of a torch DataLoader with and without mends, measured in turns.

Both are made once and read as a worker reads them.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator, Sequence
from functools import partial
from typing import Any

from input_analyzer.applying import values_in
from input_analyzer.errors import InputEndedError
from input_analyzer.handover import InputProgram, Shard
from input_analyzer.torch.mend import mend
from input_analyzer.torch.proof import order_elsewhere
from input_analyzer.turns import LEFT_OUT, TURN_S, Ratio, compare_sets, in_turns

BATCHES = 6
"""A turn takes at least so many."""
FEWEST_ROUNDS = 4


def compare(
    program: InputProgram,
    sets: Sequence[Sequence[str]],
    seconds: float,
    say: Callable[[str], None],
    optional: Collection[str] = (),
    tell: Callable[[str], None] | None = None,
) -> list[Ratio | None]:
    """For each set of findings the ratio of the rates with and without them mended, and its 95 % interval.

    Args:
        program: The input.
        sets: Identifiers of findings, with numbers as `applying.words_of` writes them.
        seconds: Time for one set.
        say: Told what is being done.
        optional: Findings that a set of several is compared without where they alone were slower.
        tell: Told the digests of what tasks share out.

    Returns:
        None for a set that changes nothing in the loader, or whose batches are too slow for the time.
    """

    if tell is not None:
        tell(order_elsewhere(program))

    def compare_one(words: tuple[str, ...], say_on: Callable[[], None]) -> Ratio | None:
        return _compare_one(program, values_in(words), seconds, say_on)

    with program.role(Shard(1, 0)):
        return compare_sets(sets, optional, compare_one, say)


def _compare_one(
    program: InputProgram, values: dict[str, float | None], seconds: float, say: Callable[[], None]
) -> Ratio | None:
    plain, changed = (program.build(Shard(1, 0)) for _ in range(2))
    mended = mend(changed, values)
    if not mended.changes:
        return None
    readers = (_Reader(plain, say), _Reader(mended.loader, say))
    turn = max(TURN_S, *(BATCHES / reader.rate(0.0) for reader in readers))
    if turn * FEWEST_ROUNDS > seconds:
        return None
    rates = (partial(reader.rate, turn) for reader in readers)
    return in_turns(*rates, fewest=FEWEST_ROUNDS, seconds=seconds, say=say)


class _Reader:
    """Reads a loader, epoch after epoch."""

    def __init__(self, loader: Any, say: Callable[[], None]) -> None:
        self._batches = _without_end(loader)
        self._say = say
        next(self._batches)  # starts the workers

    def rate(self, seconds: float) -> float:
        """Batches per second in so many seconds, the first part left out."""
        begin = time.perf_counter()
        start, count = begin, 0
        while True:
            next(self._batches)
            self._say()
            now = time.perf_counter()
            if now - begin < LEFT_OUT * seconds:
                start = now
                continue
            count += 1
            if now - begin >= seconds and count >= BATCHES:
                return count / (now - start)


def _without_end(loader: Any) -> Iterator[Any]:
    while True:
        made = 0
        for batch in loader:
            made += 1
            yield batch
        if not made:
            raise InputEndedError(0, 0)
