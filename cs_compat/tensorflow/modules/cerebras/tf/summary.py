"""Enables and disables the summaries of a model."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import tensorflow as tf

_SUMMARIES = tf.compat.v1.GraphKeys.SUMMARIES


@contextmanager
def cs1_enable_summaries() -> Iterator[None]:
    """Record the summaries of the body, as is the default."""
    yield


@contextmanager
def cs1_disable_summaries() -> Iterator[None]:
    """Do not record the summaries of the body."""
    summaries = tf.compat.v1.get_default_graph().get_collection_ref(_SUMMARIES)
    before = list(summaries)
    try:
        yield
    finally:
        summaries[:] = before
