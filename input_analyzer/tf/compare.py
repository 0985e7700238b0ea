"""Rates of an input with and without mends, measured in turns.

Both are read as a worker reads them, by one thread and with the options that they have.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Sequence
from functools import partial
from typing import Any

import tensorflow as tf

from input_analyzer.applying import PREFETCHING
from input_analyzer.findings.endings import is_endless
from input_analyzer.handover import InputProgram, Shard
from input_analyzer.tf.counting import initializers
from input_analyzer.tf.graph import Traced, trace
from input_analyzer.tf.mend import mend
from input_analyzer.turns import LEFT_OUT, TURN_S, Ratio, compare_sets, in_turns

BATCHES = 4
"""A turn takes at least so many."""
WARM_UP_S = 0.4
"""What autotune does at first, and files that are cold."""
FEWEST_ROUNDS = 6


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
    return compare_sets(
        sets, optional, lambda names, say_on: _compare_one(traced, names, seconds, say_on), say
    )


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
        if turn * FEWEST_ROUNDS > seconds:
            return None
        pause = slowest if PREFETCHING.issuperset(names) else 0.0
        if pause:
            turn *= 2
        rates = (partial(reader.rate, turn, pause) for reader in (before, after))
        return in_turns(*rates, fewest=FEWEST_ROUNDS, seconds=seconds, say=say)


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
