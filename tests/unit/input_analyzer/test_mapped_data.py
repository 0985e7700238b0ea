"""Large data are mapped from files; their graph is as good as one that holds them."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
import tensorflow as tf

from input_analyzer.tf import mapped_data
from input_analyzer.tf.counting import initializers
from input_analyzer.tf.eager_graph import in_graph
from input_rules.tf.inspection import fingerprint

ROWS = 1000


@pytest.fixture(autouse=True)
def few_bytes_are_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mapped_data, "LARGE", ROWS)


def _values(dtype: Any) -> Any:
    return np.arange(ROWS * 3).reshape(ROWS, 3).astype(dtype)


def test_a_graph_holds_no_large_data_and_tells_them_apart() -> None:
    def of(values: Any) -> Any:
        return in_graph(lambda: tf.data.Dataset.from_tensor_slices(values).batch(4))[0]

    graph = of(_values(np.float32))
    assert graph.as_graph_def().ByteSize() < ROWS
    assert fingerprint(graph) == fingerprint(of(_values(np.float32)))
    assert fingerprint(graph) != fingerprint(of(_values(np.float32)[::-1]))


def _batches(graph: Any, dataset: Any) -> Any:
    with graph.as_default():
        iterator = tf.compat.v1.data.make_initializable_iterator(dataset)
        leaves = tf.nest.flatten(iterator.get_next())
    with tf.compat.v1.Session(graph=graph) as session:
        session.run(initializers(graph))
        session.run(iterator.initializer)
        while True:
            try:
                yield session.run(leaves)
            except tf.errors.OutOfRangeError:
                return


@pytest.mark.parametrize("dtype", [np.int32, np.float64, np.bool_, np.complex64, ml_dtypes.bfloat16])
def test_mapped_records_are_the_same(dtype: Any) -> None:
    values = _values(dtype)

    def make() -> Any:
        change = tf.math.logical_not if dtype is np.bool_ else tf.negative
        whole = tf.data.Dataset.from_tensors(values).map(change)
        table = tf.Variable(values)
        rows = tf.data.Dataset.from_tensor_slices(values).map(lambda row: (row, table[0], table[0]))
        return tf.data.Dataset.zip((rows.repeat(2), whole.repeat(2).unbatch())).batch(50)

    expected = [[leaf.numpy() for leaf in tf.nest.flatten(batch)] for batch in make()]
    found = _batches(*in_graph(make))
    for batch, leaves in zip(expected, found, strict=True):
        assert all(np.array_equal(one, other) for one, other in zip(batch, leaves, strict=True))


def test_what_has_no_room_on_the_disk_is_a_constant(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*args: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("input_analyzer.tf.mapped_data.replace_file", full)
    values = _values(np.int64) + 7
    graph, _ = in_graph(lambda: tf.data.Dataset.from_tensor_slices(values))
    assert graph.as_graph_def().ByteSize() > values.nbytes
