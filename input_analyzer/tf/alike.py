"""Whether two workers read different records, told by the records: what Python code reads no graph shows."""

from __future__ import annotations

import hashlib
import random
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import numpy as np
import tensorflow as tf

from input_analyzer.tf.counting import initializers
from input_analyzer.tf.functions import PYTHON
from input_analyzer.tf.graph import Traced
from input_analyzer.tf.rebuild import as_dataset, rebuild, without_caches

MOST = 16
"""Elements of each worker that are compared."""
SECONDS = 1.0
"""So long a worker is read; its first two elements are waited for."""
_SEED = 20190731

Role = Callable[[int, int], AbstractContextManager[None]]
"""Opens what the process of one of (number of workers, index) finds in its environment."""


def calls_python(graph: Any) -> bool:
    """Whether a dataset of a graph calls Python for its records."""
    definition = graph.as_graph_def()
    functions = [function.node_def for function in definition.library.function]
    return any(node.op in PYTHON for nodes in (definition.node, *functions) for node in nodes)


def records_differ(trace: Callable[[int, int], Traced], workers: int, role: Role) -> bool | None:
    """Whether the first and the last of several workers read different records.

    Args:
        trace: Calls the input function as one of (number of workers, index) would.
        workers: Their number.
        role: Of each while it reads.

    Returns:
        False where both read the same ones in the same order, True where they have none in common; None where
        these are not enough to tell, or a worker reads others each time.
    """
    try:
        first, last = (_digests(trace, workers, index, role) for index in (0, workers - 1))
        if first == last:
            # Records that are all alike, those of a worker too, tell nothing.
            return False if len(set(first)) > 1 else None
        if not first or not last or set(first) & set(last):
            return None
        return True if first == _digests(trace, workers, 0, role) else None
    except Exception:
        # What the input raises is shown where it is read in earnest.
        return None


def _digests(trace: Callable[[int, int], Traced], workers: int, index: int, role: Role) -> tuple[str, ...]:
    """Of the first elements of a worker, by which equal ones are known."""
    with role(workers, index), _random_numbers_anew():
        traced = trace(workers, index)
        options = tf.data.Options()
        options.deterministic = True
        with traced.graph.as_default():
            # One worker must not read what another has put into a cache.
            plain = rebuild(tf.data.experimental.to_variant(traced.dataset).op, without_caches)
            dataset = as_dataset(plain, traced.dataset.element_spec).with_options(options).take(MOST)
            iterator = tf.compat.v1.data.make_initializable_iterator(dataset)
            leaves = tf.nest.flatten(iterator.get_next(), expand_composites=True)
        with tf.compat.v1.Session(graph=traced.graph) as session:
            session.run(initializers(traced.graph))
            session.run(iterator.initializer)
            return tuple(_read(session.make_callable(leaves)))


def _read(take: Callable[[], Any]) -> Iterator[str]:
    end = time.monotonic() + SECONDS
    read = 0
    while read < 2 or time.monotonic() < end:
        try:
            leaves = take()
        except tf.errors.OutOfRangeError:
            return
        digest = hashlib.blake2b(digest_size=16)
        for leaf in map(np.asarray, leaves):
            digest.update(f"{leaf.dtype} {leaf.shape} ".encode())
            digest.update(repr(leaf.tolist()).encode() if leaf.dtype == object else leaf.tobytes())
        read += 1
        yield digest.hexdigest()


@contextmanager
def _random_numbers_anew() -> Iterator[None]:
    """Those of Python and NumPy begin anew, and go on from where they are now afterwards."""
    plain, numpy = random.getstate(), np.random.get_state()
    random.seed(_SEED)
    np.random.seed(_SEED)
    try:
        yield
    finally:
        random.setstate(plain)
        np.random.set_state(numpy)
