"""Input functions that are written for eager execution, in a graph."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import tensorflow as tf

from input_analyzer.function_program import call_function, on_import, program_of
from input_analyzer.measure.examine import examine
from input_analyzer.measure.link import Order
from input_analyzer.tf.eager_graph import NeedsEagerError, rebuild_in_graph
from input_analyzer.tf.rebuild import initializers
from input_analyzer.tf.timing import count
from input_rules.input_export import Shard
from input_rules.tf.inspection import fingerprint
from input_rules.tf.pipeline import TracedDataset, trace

OUTSIDE = tf.constant(2, tf.int64)


def test_functions_for_eager_execution_mean_what_they_say() -> None:
    def make() -> Any:
        return tf.data.Dataset.range(10).filter(lambda x: x % OUTSIDE == 0).batch(2)

    traced = trace(make, in_graph=rebuild_in_graph)
    assert [stage.name for stage in traced.pipeline.stages] == ["range", "filter", "batch"]
    assert traced.pipeline.last.source is not None
    with traced.graph.as_default():
        batch = tf.compat.v1.data.make_one_shot_iterator(traced.dataset).get_next()
    with tf.compat.v1.Session(graph=traced.graph) as session:
        assert session.run(batch).tolist() == [0, 2]


COUNTER = tf.Variable(1, dtype=tf.int64)


def first_of(traced: TracedDataset) -> Any:
    """The first element that a session reads, as lists."""
    with traced.graph.as_default():
        iterator = tf.compat.v1.data.make_initializable_iterator(traced.dataset)
        element = iterator.get_next()
    with tf.compat.v1.Session(graph=traced.graph) as session:
        session.run(initializers(traced.graph))
        session.run(iterator.initializer)
        return session.run(element).tolist()


def _table() -> Any:
    rows = tf.lookup.KeyValueTensorInitializer([0, 1], [10, 20], tf.int64, tf.int64)
    table = tf.lookup.StaticHashTable(rows, -1)
    return tf.data.Dataset.range(4).map(lambda x: tf.where(x == 1, x, table.lookup(x))).batch(4)


def _counter() -> Any:
    count = tf.Variable(tf.constant(3, tf.int64) * 2, trainable=False)
    return tf.data.Dataset.range(4).map(lambda x: count.assign_add(1)).batch(4)


def _layer() -> Any:
    layer = tf.keras.layers.StringLookup(vocabulary=["1", "2"])
    return tf.data.Dataset.range(4).map(lambda x: layer(tf.as_string(x))).batch(4)


def _read_value() -> Any:
    size = int(tf.reduce_sum([1, 1]).numpy())
    return tf.data.Dataset.range(4).batch(size)


def _looped() -> Any:
    numbers = tf.data.Dataset.range(4)
    total = tf.constant(0, tf.int64)
    for number in numbers:
        total += number
    least = min(numbers.as_numpy_iterator()) + len(list(numbers)) + int(numbers.cardinality().numpy())
    return numbers.map(lambda x: x + total + least).batch(4)


def _adapted() -> Any:
    texts = tf.data.Dataset.from_tensor_slices(["a b", "b", "b c"])
    layer = tf.keras.layers.TextVectorization(output_sequence_length=2)
    layer.adapt(texts)
    return texts.map(layer).batch(3)


def _normalized() -> Any:
    layer = tf.keras.layers.Normalization(axis=None)
    numbers = tf.data.Dataset.range(4).map(lambda x: tf.cast(x, tf.float32))
    layer.adapt(numbers)
    return numbers.map(layer).batch(4)


def _inserted() -> Any:
    table = tf.lookup.experimental.MutableHashTable(tf.int64, tf.int64, -1)
    table.insert(tf.constant([1], tf.int64), tf.constant([5], tf.int64))
    return tf.data.Dataset.range(3).map(table.lookup).batch(2)


def _dense() -> Any:
    table = tf.lookup.experimental.DenseHashTable(tf.int64, tf.int64, -1, -2, -3)
    table.insert(tf.constant([1, 0], tf.int64), tf.constant([5, 6], tf.int64))
    return tf.data.Dataset.range(3).map(table.lookup).batch(3)


def _made_of_another() -> Any:
    first = tf.Variable(3, dtype=tf.int64)
    second = tf.Variable(first + 1)
    first.assign(7)
    return tf.data.Dataset.range(3).map(lambda x: x + second * first).batch(2)


def _ragged() -> Any:
    rows = tf.data.Dataset.from_tensor_slices(tf.ragged.constant([[1], [2, 3]]))
    return rows.map(lambda row: row.to_tensor() if row.shape.rank == 2 else row).padded_batch(2, [2])


def _of_parts() -> Any:
    parts = [tf.data.Dataset.range(index, index + 2) for index in range(3)]
    chosen = tf.data.Dataset.choose_from_datasets(parts, tf.data.Dataset.range(3).repeat())
    return (
        tf.data.Dataset.zip((chosen, chosen.shuffle(9, seed=1).cache())).map(lambda x, y: x * 10 + y).batch(6)
    )


@pytest.mark.parametrize(
    "make",
    [
        *(_table, _counter, _layer, _read_value, _looped, _adapted, _normalized, _inserted, _dense),
        *(_made_of_another, _ragged, _of_parts),
    ],
)
def test_what_a_function_makes_eagerly_is_made_in_a_graph(make: Callable[[], Any]) -> None:
    expected = next(iter(make())).numpy().tolist()
    traced = trace(make, in_graph=rebuild_in_graph)
    assert fingerprint(traced.graph) == fingerprint(trace(make, in_graph=rebuild_in_graph).graph)
    assert first_of(traced) == expected
    counted = set(count(traced, 0.1).per_sample)
    assert counted == {stage.name for stage in traced.pipeline.stages}
    assert all(
        (stage.source and stage.source.startswith(__file__)) or "test_eager_graph.py:" in str(stage.source)
        for stage in traced.pipeline.stages
    )


def _outside() -> Any:
    return tf.data.Dataset.range(3).map(lambda x: x + COUNTER).repeat().batch(2, drop_remainder=True)


@tf.function
def _compiled() -> Any:
    return tf.data.Dataset.range(3).repeat().batch(2, drop_remainder=True)


def _queue() -> Any:
    queue = tf.queue.FIFOQueue(10, tf.int64, [[]])
    queue.enqueue_many([[5, 6, 7]])
    waiting = tf.data.Dataset.range(3).map(lambda x: queue.dequeue() + x)
    return waiting.cache().repeat().batch(2, drop_remainder=True)


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (_compiled, r"a result of a tf.function, at .*test_eager_graph.py:\d+"),
        (_outside, r"could record it, at .*test_eager_graph.py:\d+"),
        (
            _queue,
            r"a resource of TensorFlow \(FIFOQueueV2\).*, at .*test_eager_graph.py:\d+",
        ),
    ],
)
def test_inputs_that_work_only_eagerly_are_reported_and_read_unchanged(
    make: Callable[[], Any], reason: str
) -> None:
    with pytest.raises(NeedsEagerError, match=reason):
        trace(make, in_graph=rebuild_in_graph)
    order = Order(purpose="examine", socket="", stage_seconds=0.1)
    found = examine(program_of(make, make()), order, SimpleNamespace(send=lambda **said: None))  # type: ignore[arg-type]
    assert found["batch_size"] == 2
    assert found["stages"] == []
    assert found["findings"] == []
    assert found["sharded"] is None
    (note,) = found["notes"]
    assert re.search(f"cannot be rebuilt in a graph.*{reason}", note)
    batches = program_of(make, make()).batches(Shard(1, 0))
    expected = [batch.numpy().tolist() for batch in make().take(3)]
    assert [next(batches)[0].tolist() for _ in range(3)] == expected


MODULE = """
import tensorflow as tf

NUMBERS = tf.data.Dataset.range(4).cache("kept")
FIRST = tf.Variable(min(NUMBERS.as_numpy_iterator()) + 5)


def make():
    return NUMBERS.map(lambda x: x + FIRST).batch(4)
"""


def test_what_the_module_of_a_function_makes_is_made_in_a_graph_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", sys.path[:])
    Path("numbers_of_four.py").write_text(MODULE)
    order: list[str] = []
    function, made = call_function("numbers_of_four.py:make", lambda: order.append("prepared"), order.append)
    assert order == ["prepared", "calling numbers_of_four.py:make"]
    traced = trace(function, in_graph=rebuild_in_graph)
    assert [stage.source for stage in traced.pipeline.stages] == [
        *["numbers_of_four.py:4"] * 2,
        *["numbers_of_four.py:9"] * 2,
    ]
    assert first_of(traced) == next(iter(made)).numpy().tolist() == [5, 6, 7, 8]


def test_a_callback_of_an_import_is_called_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    (tmp_path / "awaited.py").write_text("READY = True\n")
    seen: list[bool] = []
    finders = sys.meta_path[:]
    for _ in range(2):  # not imported yet, and imported
        with on_import("awaited", lambda: seen.append(sys.modules["awaited"].READY)):
            import_module("awaited")
            import_module("awaited")
        assert seen.pop()
        assert seen == []
        assert sys.meta_path == finders
    del sys.modules["awaited"]
