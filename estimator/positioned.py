"""The first element of an input that is wanted, and the way to it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from cs_runtime import input_source
from estimator.input_states import IteratorStates, StateFolder
from estimator.skipping import skipped, why_read

Take = Callable[[], Sequence[Any]]
"""Gives the arrays of the next batch."""


class PositionedTensors:
    """Tensors that are no dataset: batches are made and dropped.

    Attributes:
        element: what the program gets.
    """

    def __init__(self, element: Any, skip: int) -> None:
        self.element = element
        self._skip = skip

    def first(self, session: Any, take: Take) -> Sequence[Any]:
        """The first batch that is wanted."""
        with input_source.told(self._skip, "tensors that are no dataset"):
            for _ in range(self._skip):
                take()
            return take()

    def passed(self, session: Any, batches: int) -> None:
        """So many batches have been taken."""


class PositionedDataset:
    """A dataset behind its first batches, in the present graph.

    Where a position takes no arithmetic and states are kept, the number of batches to skip is fed, so that
    the program of the iterator is the same in every run: a state is of one program.

    Args:
        dataset: of batches.
        skip: so many are left out.
        folder: where states are kept; None for nowhere.

    Attributes:
        element: the next batch, as tensors.
    """

    def __init__(self, dataset: Any, skip: int, folder: StateFolder | None) -> None:
        import tensorflow as tf

        self._skip = skip
        self._reads = why_read(dataset) if skip or folder is not None else ""
        keeps = folder is not None and bool(self._reads)
        count = tf.compat.v1.placeholder_with_default(tf.zeros([], tf.int64), []) if keeps else skip
        iterator = tf.compat.v1.data.make_initializable_iterator(skipped(dataset, count).dataset)
        self.element = iterator.get_next()
        self._initializer = iterator.initializer
        self._feed = {count: skip} if keeps else None
        self._states = IteratorStates(folder, iterator) if keeps and folder is not None else None

    def first(self, session: Any, take: Take) -> Sequence[Any]:
        """The first batch that is wanted."""
        if self._states is not None:
            session.run(self._initializer)
            at = self._states.restore_before(session, self._skip)
            if at is not None:
                input_source.told_from_state(self._skip, at)
                for _ in range(at, self._skip):
                    take()
                return take()
        session.run(self._initializer, self._feed)
        with input_source.told(self._skip, self._reads):
            return take()

    def passed(self, session: Any, batches: int) -> None:
        """So many batches have been taken, those that were left out too."""
        if self._states is not None:
            self._states.keep_where_due(session, batches)
