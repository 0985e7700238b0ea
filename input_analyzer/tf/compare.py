"""Rates of a tf.data input with and without what findings recommend.

Both are read as a worker reads them, by one thread and with the options that they have.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import tensorflow as tf

from input_analyzer.compared import PREFETCHING
from input_analyzer.interleaved import Ratio, ratio_of
from input_analyzer.tf.changed import changed
from input_analyzer.tf.counting import initializers
from input_analyzer.tf.eager_graph import in_graph
from input_analyzer.tf.private_caches import with_own_files
from input_rules.input_export import InputProgram, Shard
from input_rules.tf.pipeline import called, trace


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
    ahead = PREFETCHING.issuperset(findings)
    with _read(traced.graph, traced.dataset) as before, _read(traced.graph, other) as after:
        return ratio_of(before, after, seconds, say, beside_a_training=ahead)


@contextmanager
def _read(graph: Any, dataset: Any) -> Iterator[Callable[[], object]]:
    """What takes a batch of a dataset, in a session of its own that takes its buffers with it at the end."""
    with graph.as_default():
        # Its end is not what is compared.
        iterator = tf.compat.v1.data.make_initializable_iterator(with_own_files(dataset).repeat())
        leaves = tf.nest.flatten(iterator.get_next())
    with tf.compat.v1.Session(graph=graph) as session:
        session.run(initializers(graph))
        session.run(iterator.initializer)
        yield session.make_callable(leaves)
