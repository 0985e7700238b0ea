"""Rates of an input with and without mends, measured in turns.

Both are read as a worker reads them, by one thread and with the options that they have.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import tensorflow as tf

from input_analyzer.applying import PREFETCHING
from input_analyzer.findings.endings import is_endless
from input_analyzer.handover import InputProgram, Shard
from input_analyzer.pipeline import Stage
from input_analyzer.tf.bounds import Bounded, without_cost
from input_analyzer.tf.counting import initializers
from input_analyzer.tf.graph import Traced, trace
from input_analyzer.tf.mend import mend
from input_analyzer.tf.private_caches import with_own_files
from input_analyzer.tf.shared_order import digest_of_order
from input_analyzer.turns import LEFT_OUT, TURN_S, Ratio, compare_sets, in_turns

CACHED = frozenset({"cache-would-fit"})
"""Findings of which the most is what a cache gives."""
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
    bounds: Mapping[str, Collection[tuple[str, str | None]]] | None = None,
    tell: Callable[[str], None] | None = None,
) -> list[Ratio | None]:
    """For each set of findings the ratio of the rates with and without them mended, and its 95 % interval.

    Args:
        program: The input.
        sets: Identifiers of findings.
        seconds: Time for one set.
        say: Told what is being done.
        optional: Findings that a set of several is compared without where they alone were slower.
        bounds: Findings that are not mended; the input without what their stages cost is compared, of which
            the operations and the user's lines are given.
        tell: Told the digest of what workers share out.

    Returns:
        None for a set that changes nothing in the graph, or whose batches are too slow for the time.
    """
    traced = trace(lambda: program.build(Shard(1, 0)), program.seed, eager=program.eager)
    if tell is not None:
        tell(digest_of_order(traced, 2))
    places = bounds or {}

    def compare_one(names: tuple[str, ...], say_on: Callable[[], None]) -> Ratio | None:
        if len(names) == 1 and names[0] in places:
            stages = _stages_at(traced, places[names[0]])
            return _bound_one(traced, stages, names[0] in CACHED, seconds, say_on)
        return _compare_one(traced, names, seconds, say_on)

    return compare_sets(sets, optional, compare_one, say)


def _compare_one(
    traced: Traced, names: Collection[str], seconds: float, say: Callable[[], None]
) -> Ratio | None:
    always = _always(traced)
    plain, mended = (mend(traced.dataset, found) for found in (always, {*always, *names}))
    if mended.changes == plain.changes:
        return None
    sets = (Bounded(plain.dataset), Bounded(mended.dataset))
    return _read_in_turns(traced.graph, sets, seconds, say, pausing=PREFETCHING.issuperset(names))


def _stages_at(traced: Traced, places: Collection[tuple[str, str | None]]) -> list[Stage]:
    return [stage for stage in traced.pipeline.stages if (stage.op, stage.source) in places]


def _bound_one(
    traced: Traced, stages: Sequence[Stage], cached: bool, seconds: float, say: Callable[[], None]
) -> Ratio | None:
    say()
    try:
        bounded = without_cost(traced, stages, cached=cached)
    except (tf.errors.OpError, TypeError, ValueError):
        return None  # what cannot be built so keeps what is expected of it
    if bounded is None:
        return None
    always = _always(traced)
    plain, ready = (mend(dataset, always).dataset for dataset in (traced.dataset, bounded.dataset))
    return _read_in_turns(traced.graph, (Bounded(plain), Bounded(ready, bounded.fed)), seconds, say)


def _always(traced: Traced) -> set[str]:
    """Where the data end, both are repeated: their end is not what is compared."""
    return set() if is_endless(traced.pipeline) else {"repeat-missing"}


def _read_in_turns(
    graph: Any,
    datasets: tuple[Bounded, Bounded],
    seconds: float,
    say: Callable[[], None],
    *,
    pausing: bool = False,
) -> Ratio | None:
    """The ratio of the rate of the second to that of the first; `pausing`: as read by a training."""
    first, second = (replace(one, dataset=with_own_files(one.dataset)) for one in datasets)
    with _Reader(graph, first) as before, _Reader(graph, second) as after:
        slowest = 0.0
        for reader in (before, after):
            say()
            slowest = max(slowest, 1 / reader.rate(WARM_UP_S))
        turn = max(TURN_S, BATCHES * slowest)
        if turn * FEWEST_ROUNDS > seconds:
            return None
        pause = slowest if pausing else 0.0
        if pause:
            turn *= 2
        rates = (partial(reader.rate, turn, pause) for reader in (before, after))
        return in_turns(*rates, fewest=FEWEST_ROUNDS, seconds=seconds, say=say)


class _Reader:
    """A dataset in a session of its own, which takes its buffers with it at the end."""

    def __init__(self, graph: Any, source: Bounded) -> None:
        with graph.as_default():
            iterator = tf.compat.v1.data.make_initializable_iterator(source.dataset)
            self._initializer = iterator.initializer
            leaves = tf.nest.flatten(iterator.get_next())
        self._fed = source.fed
        self._session = tf.compat.v1.Session(graph=graph)
        self._session.run(initializers(graph))
        self._start()
        self._take = self._session.make_callable(leaves)

    def __enter__(self) -> _Reader:
        return self

    def __exit__(self, *error: object) -> None:
        self._session.close()

    def _start(self) -> None:
        self._session.run(self._initializer, self._fed)

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
                self._start()
                self._take()
                began += time.perf_counter() - ended
            batches += 1
            if pause:
                time.sleep(pause)
            passed = time.perf_counter() - began
            if passed >= seconds:
                return batches, passed
