"""Whether two workers read different records, told by the records: what Python code reads no graph shows."""

from __future__ import annotations

import hashlib
import random
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow as tf

from input_analyzer.tf.counting import initializers
from input_analyzer.tf.eager_graph import seeds_anew
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


@dataclass(frozen=True)
class Likeness:
    """Whether two workers read different records.

    Attributes:
        differ: False where both read the same ones in the same order, True where they have none in common;
            None where nobody can tell.
        unknown: Why nobody can tell; a part of a sentence.
    """

    differ: bool | None
    unknown: str = ""


RANDOM_EACH_TIME = (
    "each time that it is called as the same worker it is made, or read, differently, as with a variable or "
    "another state that each call changes, or random numbers that neither random.seed() nor "
    "numpy.random.seed() decides"
)


def records_differ(trace: Callable[[int, int], Traced], workers: int, role: Role) -> Likeness:
    """Whether the first and the last of several workers read different records.

    Args:
        trace: Calls the input function as one of (number of workers, index) would.
        workers: Their number.
        role: Of each while it reads.
    """

    def begin(index: int) -> Begin:
        with role(workers, index), random_numbers_anew():
            return _in_graph(trace(workers, index))

    return _likeness(begin, workers)


def eager_records_differ(make: Callable[[int, int], Any], workers: int, role: Role) -> Likeness:
    """The same of a dataset that cannot be made in a graph.

    Args:
        make: Calls it as one of (number of workers, index) would.
        workers: Their number.
        role: Of each while it reads.
    """

    def begin(index: int) -> Begin:
        with role(workers, index), random_numbers_anew(), seeds_anew(_SEED):
            elements = iter(make(workers, index).with_options(_in_order()).take(MOST))

            def take() -> Any:
                try:
                    return [leaf.numpy() for leaf in tf.nest.flatten(next(elements), expand_composites=True)]
                except StopIteration:
                    raise tf.errors.OutOfRangeError(None, None, "") from None

            return _read(take)

    return _likeness(begin, workers)


@dataclass(frozen=True)
class Begin:
    """What was read of a worker.

    Attributes:
        digests: Of its first elements.
        ended: It has no more; else it has, or may have.
    """

    digests: tuple[str, ...]
    ended: bool

    def is_that_of(self, other: Begin) -> bool:
        """Whether both begin alike, as far as they were read: a busy machine may have read less of one."""
        if self.ended and other.ended:
            return self.digests == other.digests
        common = min(len(self.digests), len(other.digests))
        shorter = self if len(self.digests) == common else other
        goes_on = not shorter.ended or len(self.digests) == len(other.digests)
        return goes_on and self.digests[:common] == other.digests[:common]


def _likeness(begin: Callable[[int], Begin], workers: int) -> Likeness:
    """By what the first and the last of several workers read first."""
    try:
        first, last = (begin(index) for index in (0, workers - 1))
        if first.is_that_of(last):
            # Records that are all alike, those of a worker too, tell nothing.
            common = min(len(first.digests), len(last.digests))
            alike = len(set(first.digests[:common])) < 2
            return Likeness(None, "the first batches are all alike") if alike else Likeness(False)
        if not first.is_that_of(begin(0)):
            return Likeness(None, RANDOM_EACH_TIME)
        if not first.digests or not last.digests or set(first.digests) & set(last.digests):
            return Likeness(None, "two workers were seen to read the same in part")
        return Likeness(True)
    except Exception as error:
        # What the input raises is shown where it is read in earnest.
        return Likeness(None, f"read as one of {workers} workers it raises {type(error).__name__}")


def _in_graph(traced: Traced) -> Begin:
    """What is read of a dataset in a graph."""
    with traced.graph.as_default():
        # One worker must not read what another has put into a cache.
        plain = rebuild(tf.data.experimental.to_variant(traced.dataset).op, without_caches)
        dataset = as_dataset(plain, traced.dataset.element_spec).with_options(_in_order()).take(MOST)
        iterator = tf.compat.v1.data.make_initializable_iterator(dataset)
        leaves = tf.nest.flatten(iterator.get_next(), expand_composites=True)
    with tf.compat.v1.Session(graph=traced.graph) as session:
        session.run(initializers(traced.graph))
        session.run(iterator.initializer)
        return _read(session.make_callable(leaves))


def _in_order() -> Any:
    options = tf.data.Options()
    options.deterministic = True
    return options


def _read(take: Callable[[], Any]) -> Begin:
    end = time.monotonic() + SECONDS
    digests: list[str] = []
    while len(digests) < 2 or time.monotonic() < end:
        try:
            leaves = take()
        except tf.errors.OutOfRangeError:
            # Of what goes on it was cut off: that is no end.
            return Begin(tuple(digests), ended=len(digests) < MOST)
        digest = hashlib.blake2b(digest_size=16)
        for leaf in map(np.asarray, leaves):
            digest.update(f"{leaf.dtype} {leaf.shape} ".encode())
            digest.update(repr(leaf.tolist()).encode() if leaf.dtype == object else leaf.tobytes())
        digests.append(digest.hexdigest())
    return Begin(tuple(digests), ended=False)


@contextmanager
def random_numbers_anew(seed: int = _SEED) -> Iterator[Callable[[], bool]]:
    """Those of Python and NumPy begin anew, and go on from where they are now afterwards.

    Two workers are compared with the same random numbers. A function may draw a seed from them when it is
    called, as the loaders of Keras do: two calls in one process draw two seeds, but processes that the user
    seeds alike draw one, and those that are not seeded read all records all the same, in another order. To
    set the seeds aside instead would not do: numbers also choose, as `permutation(n)[index::workers]` does,
    and a seed that is written for each worker is meant.

    Args:
        seed: Of both.

    Yields:
        What tells whether any have been drawn since.
    """
    plain, numpy = random.getstate(), np.random.get_state()
    random.seed(seed)
    np.random.seed(seed)
    start = _state()
    try:
        yield lambda: _state() != start
    finally:
        random.setstate(plain)
        np.random.set_state(numpy)


def _state() -> Any:
    """Where the random numbers of Python and NumPy are."""
    return random.getstate(), [np.asarray(part).tolist() for part in np.random.get_state()]
