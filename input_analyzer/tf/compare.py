"""Rates of an input with and without mends, measured in turns.

Both are read as a worker reads them, by one thread and with the options that they have; a turn takes a
fraction of a second, so a busy machine disturbs both alike. While one is read, threads of the other fill its
buffers and stop: so the first part of every turn, in which these are emptied, does not count.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Collection, Sequence
from functools import partial
from typing import Any

import numpy as np
import tensorflow as tf

from input_analyzer.applying import PREFETCHING, Ratio, worth_while
from input_analyzer.findings.endings import is_endless
from input_analyzer.handover import InputProgram, Shard
from input_analyzer.measure.statistics import student_975
from input_analyzer.tf.counting import initializers
from input_analyzer.tf.graph import Traced, trace
from input_analyzer.tf.mend import mend

TURN_S = 0.25
"""A turn takes at least so long, and at least `BATCHES` batches."""
BATCHES = 4
WARM_UP_S = 0.4
"""What autotune does at first, and files that are cold."""
LEFT_OUT = 0.4
"""Part of a turn in which buffers are emptied."""
FEWEST_ROUNDS = 6
TIGHT = 0.02
"""Half of the interval, as part of the ratio, from which on no more rounds are needed."""


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
        None for a set that changes nothing in the graph, or whose batches are too slow for the time.
    """
    traced = trace(lambda: program.build(Shard(1, 0)), program.seed, eager=program.eager)
    ratios: list[Ratio | None] = []
    alone: dict[str, Ratio | None] = {}
    for names in sets:
        doing = f"measuring what mending {' and '.join(names) if len(names) < 3 else 'all'} gives"
        ratio = _compare_one(traced, worth_while(names, alone, optional), seconds, partial(say, doing))
        ratios.append(ratio)
        if len(names) == 1:
            alone[names[0]] = ratio
    return ratios


def _compare_one(
    traced: Traced, names: Collection[str], seconds: float, say: Callable[[], None]
) -> Ratio | None:
    # Where the data end, both are repeated: their end is not what is compared.
    always = set() if is_endless(traced.pipeline) else {"repeat-missing"}
    plain, mended = (mend(traced.dataset, found) for found in (always, {*always, *names}))
    if mended.changes == plain.changes:
        return None
    with _Reader(traced.graph, plain.dataset) as before, _Reader(traced.graph, mended.dataset) as after:
        slowest = 0.0
        for reader in (before, after):
            say()
            slowest = max(slowest, 1 / reader.rate(WARM_UP_S))
        turn = max(TURN_S, BATCHES * slowest)
        if 2 * turn * FEWEST_ROUNDS > 2 * seconds:
            return None
        pause = slowest if PREFETCHING.issuperset(names) else 0.0
        if pause:
            turn *= 2
        return _in_turns(before, after, turn, pause, time.monotonic() + seconds, say)


def _in_turns(
    before: _Reader, after: _Reader, turn: float, pause: float, end: float, say: Callable[[], None]
) -> Ratio:
    logs: list[float] = []
    while True:
        say()
        # Each begins as often as the other.
        first, second = (before, after) if len(logs) % 2 else (after, before)
        rates = {id(reader): reader.rate(turn, pause) for reader in (first, second)}
        logs.append(math.log(rates[id(after)] / rates[id(before)]))
        if len(logs) >= FEWEST_ROUNDS:
            half = student_975(len(logs) - 1) * float(np.std(logs, ddof=1)) / math.sqrt(len(logs))
            if half < TIGHT or time.monotonic() > end:
                middle = float(np.mean(logs))
                return math.exp(middle), math.exp(middle - half), math.exp(middle + half)


class _Reader:
    """A dataset in a session of its own, which takes its buffers with it at the end."""

    def __init__(self, graph: Any, dataset: Any) -> None:
        with graph.as_default():
            iterator = tf.compat.v1.data.make_initializable_iterator(dataset)
            self._start = iterator.initializer
            leaves = tf.nest.flatten(iterator.get_next())
        self._session = tf.compat.v1.Session(graph=graph)
        self._session.run(initializers(graph))
        self._session.run(self._start)
        self._take = self._session.make_callable(leaves)

    def __enter__(self) -> _Reader:
        return self

    def __exit__(self, *error: object) -> None:
        self._session.close()

    def rate(self, seconds: float, pause: float = 0.0) -> float:
        """Batches a second in about so many seconds; after each batch it waits, as for a training."""
        self._read(LEFT_OUT * seconds, pause)
        batches, passed = self._read((1 - LEFT_OUT) * seconds, pause)
        return batches / passed

    def _read(self, seconds: float, pause: float) -> tuple[int, float]:
        """Reads for so long, at least one batch; the number of batches, and the time without new starts."""
        began = time.perf_counter()
        batches = 0
        while True:
            try:
                self._take()
            except tf.errors.OutOfRangeError:
                # The data have ended; its building is not reading.
                ended = time.perf_counter()
                self._session.run(self._start)
                self._take()
                began += time.perf_counter() - ended
            batches += 1
            if pause:
                time.sleep(pause)
            passed = time.perf_counter() - began
            if passed >= seconds:
                return batches, passed
