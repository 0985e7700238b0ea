"""Rates of a torch DataLoader with and without mends, measured in turns.

Both are made once and read as a worker reads them. While one is read, workers of the other fill what they
make ahead and stop; the first part of every turn, in which that is emptied, does not count.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np

from input_analyzer.applying import Ratio, worth_while
from input_analyzer.errors import InputEndedError
from input_analyzer.findings.context import Context
from input_analyzer.findings.torch_workers import wanted_workers
from input_analyzer.handover import InputProgram, Shard
from input_analyzer.measure.statistics import student_975
from input_analyzer.torch.loader import pipeline_of
from input_analyzer.torch.mend import WORKER_COUNTS, mend
from input_analyzer.torch.timing import time_stages

TURN_S = 0.25
"""A turn takes at least so long, and at least `BATCHES` batches."""
BATCHES = 6
LEFT_OUT = 0.4
"""Part of a turn in which what was made ahead is emptied."""
FEWEST_ROUNDS = 4
TIGHT = 0.02
"""Half of the interval, as part of the ratio, from which on no more rounds are needed."""
_STAGES_S = 0.5


def compare(
    program: InputProgram,
    sets: Sequence[Sequence[str]],
    seconds: float,
    say: Callable[[str], None],
    optional: Collection[str] = (),
) -> list[Ratio | None]:
    """For each set of findings the ratio of the rates with and without them mended, and its 95 % interval.

    Args:
        program: The input.
        sets: Identifiers of findings.
        seconds: Time for one set.
        say: Told what is being done.
        optional: Findings that a set of several is compared without where they alone were slower.

    Returns:
        None for a set that changes nothing in the loader, or whose batches are too slow for the time.
    """
    workers = _workers_per_cpu(program, say)
    ratios: list[Ratio | None] = []
    alone: dict[str, Ratio | None] = {}
    for names in sets:
        doing = f"measuring what mending {' and '.join(names) if len(names) < 3 else 'all'} gives"
        wanted = worth_while(names, alone, optional)
        values = {name: workers if name in WORKER_COUNTS else None for name in wanted}
        ratio = _compare_one(program, values, seconds, partial(say, doing))
        ratios.append(ratio)
        if len(names) == 1:
            alone[names[0]] = ratio
    return ratios


def _workers_per_cpu(program: InputProgram, say: Callable[[str], None]) -> float:
    """As many workers as the finding recommends, for each CPU."""
    loader = program.build(Shard(1, 0))
    pipeline = pipeline_of(loader, next(iter(loader), None))
    times = {one.stage: one for one in time_stages(loader, pipeline, _STAGES_S, say)}
    cpus = len(os.sched_getaffinity(0))
    return wanted_workers(pipeline, Context(times=times, cpus=cpus)) / cpus


def _compare_one(
    program: InputProgram, values: dict[str, float | None], seconds: float, say: Callable[[], None]
) -> Ratio | None:
    plain, changed = (program.build(Shard(1, 0)) for _ in range(2))
    mended = mend(changed, values)
    if not mended.changes:
        return None
    readers = (_Reader(plain, say), _Reader(mended.loader, say))
    turn = max(TURN_S, *(BATCHES / reader.rate(0.0) for reader in readers))
    if 2 * turn * FEWEST_ROUNDS > 2 * seconds:
        return None
    end = time.monotonic() + seconds
    logs: list[float] = []
    while len(logs) < FEWEST_ROUNDS or (time.monotonic() < end and _half_width(logs) > TIGHT):
        # In turns first and last, so that what changes with time disturbs both alike.
        order = readers if len(logs) % 2 else readers[::-1]
        rates = {reader: reader.rate(turn) for reader in order}
        logs.append(float(np.log(rates[readers[1]] / rates[readers[0]])))
    middle, half = float(np.mean(logs)), _half_width(logs)
    return float(np.exp(middle)), float(np.exp(middle - half)), float(np.exp(middle + half))


def _half_width(logs: Sequence[float]) -> float:
    return student_975(len(logs) - 1) * float(np.std(logs, ddof=1)) / float(np.sqrt(len(logs)))


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
