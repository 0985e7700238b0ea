"""Rates of an input with and without what findings recommend, measured interleaved.

Both are read as a worker reads them, by one thread and with the options that they have.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import tensorflow as tf

from input_analyzer.compared import PREFETCHING
from input_analyzer.interleaved import LEFT_OUT, TURN_S, Ratio, rates_interleaved
from input_analyzer.tf.changed import changed
from input_analyzer.tf.counting import initializers
from input_analyzer.tf.eager_graph import in_graph
from input_analyzer.tf.private_caches import with_own_files
from input_rules.handover import InputProgram, Shard
from input_rules.tf.graph import called, trace

BATCHES = 4
"""A turn takes at least so many."""
WARM_UP_S = 0.4
"""What autotune does at first, and files that are cold."""
FEWEST_ROUNDS = 6


def compare(
    program: InputProgram, findings: Mapping[str, int | None], seconds: float, say: Callable[[], None]
) -> Ratio | None:
    """The ratio of the rates with and without some changes, and its 95 % interval.

    Args:
        program: The input.
        findings: Identifiers of findings.
        seconds: Time to take.
        say: Called now and then.

    Returns:
        None where nothing changes in the graph, or batches are too slow for the time.
    """
    traced = trace(
        lambda: program.build(Shard(1, 0)), program.seed, in_graph=in_graph if program.eager else called
    )
    other = changed(traced.dataset, findings)
    if other is None:
        return None
    with _Reader(traced.graph, traced.dataset) as before, _Reader(traced.graph, other) as after:
        slowest = 0.0
        for reader in (before, after):
            say()
            slowest = max(slowest, 1 / reader.rate(WARM_UP_S))
        turn = max(TURN_S, BATCHES * slowest)
        if turn * FEWEST_ROUNDS > seconds:
            return None
        # What is made ahead shows where a training takes as long for a batch as its making.
        pause = slowest if PREFETCHING.issuperset(findings) else 0.0
        turn *= 2 if pause else 1
        rates = (partial(reader.rate, turn, pause) for reader in (before, after))
        return rates_interleaved(*rates, fewest=FEWEST_ROUNDS, seconds=seconds, say=say)


class _Reader:
    """A dataset in a session of its own, which takes its buffers with it at the end."""

    def __init__(self, graph: Any, dataset: Any) -> None:
        with graph.as_default():
            # Its end is not what is compared.
            own = with_own_files(dataset).repeat()
            iterator = tf.compat.v1.data.make_initializable_iterator(own)
            leaves = tf.nest.flatten(iterator.get_next())
        self._session = tf.compat.v1.Session(graph=graph)
        self._session.run(initializers(graph))
        self._session.run(iterator.initializer)
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
        """Reads for so long, at least one batch; the number of batches, and the time."""
        began = time.perf_counter()
        batches = 0
        while True:
            self._take()
            batches += 1
            if pause:
                time.sleep(pause)
            passed = time.perf_counter() - began
            if passed >= seconds:
                return batches, passed
