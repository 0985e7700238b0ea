"""Digests of what workers read of a tf.data input, for `overlap` to compare, where no graph shows it."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import numpy as np
import tensorflow as tf

from input_analyzer.overlap import Overlap, Reading, overlap
from input_analyzer.tf.counting import initializers
from input_analyzer.tf.rebuild import as_dataset, rebuild, without_caches
from input_rules.tf.inspection import random_numbers_alike
from input_rules.tf.pipeline import Traced

MOST = 16
"""Batches of each worker that are compared."""
SECONDS = 1.0
"""So long a worker is read; its first two batches are waited for."""
SEED = 20190731

Role = Callable[[int], AbstractContextManager[None]]
"""Opens what the process of a worker, by its index, finds in its environment."""


def overlap_of_workers(trace: Callable[[int], Traced], role: Role) -> Overlap | None:
    """What two workers have in common.

    Args:
        trace: Calls the input function as the first worker (0) or as the second one (1).
        role: Of each while it reads.
    """

    def read(index: int) -> Reading:
        with role(index), random_numbers_alike():
            return _of_traced(trace(index))

    return overlap(read(0), read(1), read(0))


def _of_traced(traced: Traced) -> Reading:
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


def _read(take: Callable[[], Any]) -> Reading:
    end = time.monotonic() + SECONDS
    digests: list[str] = []
    while len(digests) < 2 or time.monotonic() < end:
        try:
            leaves = take()
        except tf.errors.OutOfRangeError:
            # Of what goes on it was cut off: that is no end.
            return Reading(tuple(digests), whole=len(digests) < MOST)
        digest = hashlib.blake2b(digest_size=16)
        for leaf in map(np.asarray, leaves):
            digest.update(f"{leaf.dtype} {leaf.shape} ".encode())
            digest.update(repr(leaf.tolist()).encode() if leaf.dtype == object else leaf.tobytes())
        digests.append(digest.hexdigest())
    return Reading(tuple(digests), whole=False)
