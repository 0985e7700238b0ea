"""Elements of a stage that are kept in memory, and datasets that deliver them again and again."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow as tf

from input_analyzer.tf.rebuild import as_dataset, plain_options, structure

MOST = 512
"""Elements that are kept of a stage."""
MOST_BYTES = 32 << 20
"""Memory that they take, about."""
_LARGE = 16 << 10
"""Elements of more bytes are handed on as they are, not sliced out of one array, which copies them."""
_MOST_LARGE = 32


@dataclass(frozen=True)
class Kept:
    """Some elements of a stage.

    Attributes:
        elements: Of each element its flat components.
        spec: Specs of the components.
    """

    elements: tuple[tuple[Any, ...], ...]
    spec: tuple[Any, ...]

    def dataset(self, graph: Any, *, endless: bool) -> tuple[Any, dict[str, Any]]:
        """A dataset of the elements in a graph: its tensor, and what is fed by the names of placeholders."""
        with graph.as_default():
            dataset, fed = self._sliced() if self._is_sliced() else self._chosen()
            return tf.data.experimental.to_variant(dataset.repeat() if endless else dataset), fed

    def _is_sliced(self) -> bool:
        first = self.elements[0]
        alike = all(
            np.shape(part) == np.shape(other)
            for element in self.elements
            for part, other in zip(element, first, strict=True)
        )
        return alike and sum(np.asarray(part).nbytes for part in first) <= _LARGE

    def _sliced(self) -> tuple[Any, dict[str, Any]]:
        columns = [_stacked(column) for column in zip(*self.elements, strict=True)]
        holders = [
            tf.compat.v1.placeholder(spec.dtype, column.shape)
            for spec, column in zip(self.spec, columns, strict=True)
        ]
        dataset = tf.data.Dataset.from_tensor_slices(tuple(holders))
        return dataset, {holder.name: column for holder, column in zip(holders, columns, strict=True)}

    def _chosen(self) -> tuple[Any, dict[str, Any]]:
        fed: dict[str, Any] = {}
        parts = []
        for element in self.elements[:_MOST_LARGE]:
            holders = tuple(tf.compat.v1.placeholder(spec.dtype, spec.shape) for spec in self.spec)
            fed.update((holder.name, part) for holder, part in zip(holders, element, strict=True))
            parts.append(tf.data.Dataset.from_tensors(holders).repeat())
        chosen = tf.data.Dataset.range(len(parts))
        return tf.data.Dataset.choose_from_datasets(parts, chosen), fed


def _stacked(column: tuple[Any, ...]) -> Any:
    # NumPy's own strings lose zeros at their end, which serialized records may have.
    kind = object if isinstance(column[0], bytes) else None
    return np.stack([np.asarray(part, kind) for part in column])


def is_keepable(node: Any) -> bool:
    """Whether elements of a dataset operation can be taken out of the graph: nested datasets cannot."""
    return all(spec.dtype not in (tf.variant, tf.resource) for spec in structure(node))


def keep(session: Any, tensor: Any, fed: dict[str, Any], spec: tuple[Any, ...], seconds: float) -> Kept:
    """Draws elements of a dataset for about so many seconds, and one at least where there is one."""
    with session.graph.as_default():
        dataset = as_dataset(tensor, spec).with_options(plain_options())
        iterator = tf.compat.v1.data.make_initializable_iterator(dataset)
        drawn = tf.nest.flatten(iterator.get_next())
    session.run(iterator.initializer, fed)
    draw = session.make_callable(drawn)
    elements: list[tuple[Any, ...]] = []
    size = 0
    end = time.monotonic() + seconds
    try:
        while len(elements) < MOST and size < MOST_BYTES and (len(elements) < 2 or time.monotonic() < end):
            element = tuple(draw())
            size += sum(np.asarray(part).nbytes for part in element)
            elements.append(element)
    except tf.errors.OutOfRangeError:
        pass
    return Kept(tuple(elements), spec)
