"""Which summaries of a model are kept."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import tensorflow as tf

_SUMMARIES = tf.compat.v1.GraphKeys.SUMMARIES


@contextmanager
def cs1_enable_summaries() -> Iterator[None]:
    """Summaries that are made inside are kept, as they are anyway."""
    yield


@contextmanager
def cs1_disable_summaries() -> Iterator[None]:
    """Summaries that are made inside are not recorded."""
    summaries = tf.compat.v1.get_default_graph().get_collection_ref(_SUMMARIES)
    before = list(summaries)
    try:
        yield
    finally:
        summaries[:] = before
