"""Rates of a torch DataLoader with and without what findings recommend, measured interleaved.

Both are made once and read as a worker reads them.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

from input_analyzer.errors import InputEndedError
from input_analyzer.interleaved import LEFT_OUT, TURN_S, Ratio, rates_interleaved
from input_analyzer.torch.changed import changed
from input_rules.handover import InputProgram, Shard

BATCHES = 6
"""A turn takes at least so many."""
FEWEST_ROUNDS = 4


def compare(
    program: InputProgram, findings: Mapping[str, int | None], seconds: float, say: Callable[[], None]
) -> Ratio | None:
    """The ratio of the rates with and without some changes, and its 95 % interval.

    Args:
        program: The input.
        findings: Identifiers of findings, with the number that each recommends.
        seconds: Time to take.
        say: Called now and then.

    Returns:
        None where nothing changes, or batches are too slow for the time.
    """
    with program.role(Shard(1, 0)):
        plain, other = (program.build(Shard(1, 0)) for _ in range(2))
        other = changed(other, findings)
        if other is None:
            return None
        readers = (_Reader(plain, say), _Reader(other, say))
        turn = max(TURN_S, *(BATCHES / reader.rate(0.0) for reader in readers))
        if turn * FEWEST_ROUNDS > seconds:
            return None
        rates = (partial(reader.rate, turn) for reader in readers)
        return rates_interleaved(*rates, fewest=FEWEST_ROUNDS, seconds=seconds, say=say)


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
