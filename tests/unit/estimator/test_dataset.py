"""Reading input functions, and what their batches look like."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from cs_runtime.errors import ShardingError
from cs_runtime.input_source import narrow_integers
from estimator import CSRunConfig, ModeKeys
from estimator.cs.program import ProgramInput
from estimator.errors import InputFnError, InputShapeError
from estimator.input.dataset import InputSource, describe, read
from input_rules.input_export import Shard


def source(input_fn: Any, mode: str = ModeKeys.TRAIN, **more: Any) -> InputSource:
    return InputSource(input_fn, mode, {"batch_size": 4}, CSRunConfig(), more.pop("tf_config", {}), **more)


def counting(params: dict[str, Any]) -> tf.data.Dataset:
    dataset = tf.data.Dataset.range(20).map(lambda i: ({"b": i, "a": tf.cast(i, tf.float32)}, 2 * i))
    return dataset.batch(params["batch_size"], drop_remainder=True)


def test_components_are_in_the_order_of_tf_nest() -> None:
    element = describe(source(counting))
    names = [(c.name, c.dtype, c.shape) for c in element.components]
    assert names == [
        ("features/a", tf.float32, (4,)),
        ("features/b", tf.int64, (4,)),
        ("labels", tf.int64, (4,)),
    ]
    assert element.pack(["A", "B", "L"]) == ({"a": "A", "b": "B"}, "L")


def test_batches_come_in_that_order_with_32_bit_integers() -> None:
    batches = list(read(source(counting), 1, 0))
    assert len(batches) == 5
    a, b, labels = batches[1]
    assert (a.dtype, b.dtype, labels.dtype) == (np.float32, np.int32, np.int32)
    assert a.tolist() == [4.0, 5.0, 6.0, 7.0]
    assert labels.tolist() == [8, 10, 12, 14]


@pytest.mark.parametrize("skip", [0, 2, 5, 9])
def test_skip_leaves_out_whole_batches(skip: int) -> None:
    everything = [batch[1].tolist() for batch in read(source(counting), 1, 0)]
    assert [batch[1].tolist() for batch in read(source(counting), 1, skip)] == everything[skip:]


def test_a_shuffled_input_is_the_same_each_time_it_is_built() -> None:
    def shuffled(params: dict[str, Any]) -> tf.data.Dataset:
        return tf.data.Dataset.range(64).shuffle(64).batch(params["batch_size"], drop_remainder=True)

    first = [batch[0].tolist() for batch in read(source(shuffled), 3, 0)]
    assert [batch[0].tolist() for batch in read(source(shuffled), 3, 4)] == first[4:]
    assert [batch[0].tolist() for batch in read(source(shuffled), 4, 0)] != first


def test_reading_works_in_a_thread_and_leaves_eager_execution_on() -> None:
    result: list[Any] = []
    thread = threading.Thread(target=lambda: result.extend(read(source(counting), 1, 0)))
    thread.start()
    thread.join(timeout=60)
    assert len(result) == 5
    assert tf.executing_eagerly()


def test_labels_are_left_out_to_predict() -> None:
    element = describe(source(counting, ModeKeys.PREDICT))
    assert [c.name for c in element.components] == ["features/a", "features/b"]
    assert len(next(read(source(counting, ModeKeys.PREDICT), 1, 0))) == 2


def test_tensors_repeat_and_skip() -> None:
    def counter() -> tuple[Any, Any]:
        iterator = tf.compat.v1.data.make_one_shot_iterator(tf.data.Dataset.range(6).batch(2, True))
        values = iterator.get_next()
        return values, values + 1

    assert [batch[1].tolist() for batch in read(source(counter), 1, 1)] == [[3, 4], [5, 6]]


def test_arguments_by_name() -> None:
    seen: dict[str, Any] = {}

    def input_fn(mode: str, params: dict[str, Any], config: Any, input_context: Any) -> tf.data.Dataset:
        seen.update(mode=mode, params=params, config=config, context=input_context)
        return tf.data.Dataset.range(4).batch(4, drop_remainder=True)

    describe(source(input_fn, num_shards=3, shard=2))
    assert seen["mode"] == "train"
    assert seen["params"] == {"batch_size": 4}
    context = seen["context"]
    assert (context.num_input_pipelines, context.input_pipeline_id) == (3, 2)


def test_dynamic_shapes_are_refused_with_the_cure() -> None:
    def dynamic() -> tf.data.Dataset:
        return tf.data.Dataset.from_tensor_slices({"image": np.zeros([6, 784], np.float32)}).batch(4)

    with pytest.raises(InputShapeError, match=r"'features/image' .* \(None, 784\).*drop_remainder=True"):
        describe(source(dynamic))


@pytest.mark.parametrize(
    ("element", "message"),
    [
        (lambda: None, "returned None"),
        (lambda: (tf.ones([2]),) * 3, r"must return \(features, labels\); got a tuple of 3"),
        (lambda: tf.constant(["a"]), "'features' of the input has the type string"),
        (lambda: tf.sparse.from_dense(tf.ones([2, 2])), "'features' of the input is SparseTensor"),
        (lambda size: None, "requires the argument 'size'"),
    ],
)
def test_unusable_inputs(element: Any, message: str) -> None:
    with pytest.raises(InputFnError, match=message):
        describe(source(element))


def test_integers_beyond_32_bits_are_refused() -> None:
    with pytest.raises(InputFnError, match=r"'labels' .* to 4294967296; .* 32 bits"):
        narrow_integers("labels", np.array([0, 1 << 32]))


def test_closing_waits_for_nothing_that_the_input_does() -> None:
    begun, go_on = threading.Event(), threading.Event()

    def slow(number: Any) -> Any:
        if number.numpy() >= 2:
            begun.set()
            go_on.wait(60)
        return number

    def busy(params: dict[str, Any]) -> tf.data.Dataset:
        return tf.data.Dataset.range(9).map(
            lambda n: tf.ensure_shape(tf.py_function(slow, [n], tf.int64), [])
        )

    def prefetched(params: dict[str, Any]) -> tf.data.Dataset:
        return busy(params).batch(1, drop_remainder=True).prefetch(4)

    batches = read(source(prefetched), None, 0)
    next(batches)
    begun.wait(60)
    closing = threading.Thread(target=batches.close)  # type: ignore[attr-defined]
    closing.start()
    closing.join(20)
    waited = closing.is_alive()
    go_on.set()
    assert not waited


def by_context(params: dict[str, Any], input_context: Any) -> tf.data.Dataset:
    records = tf.data.Dataset.range(60)
    records = records.shard(input_context.num_input_pipelines, input_context.input_pipeline_id)
    return records.batch(params["batch_size"], drop_remainder=True)


def by_config(params: dict[str, Any], config: Any) -> tf.data.Dataset:
    records = tf.data.Dataset.range(60).shard(config.num_worker_replicas, config.task_id)
    return records.batch(params["batch_size"], drop_remainder=True)


@pytest.mark.parametrize("input_fn", [by_context, by_config])
def test_a_worker_reads_any_part_of_any_shard(input_fn: Any) -> None:
    given = ProgramInput(source(input_fn, num_shards=1, shard=0))
    assert given.sharding() == "shards"
    shard = list(range(1, 60, 3))
    batches = [shard[first : first + 4] for first in range(0, 20, 4)]
    assert [batch[0].tolist() for batch in given.part(Shard(3, 1), 0, 1)] == batches
    assert [batch[0].tolist() for batch in given.part(Shard(3, 1), 1, 2)] == batches[1::2]


def test_an_input_that_does_not_ask_for_its_shard_has_only_its_own() -> None:
    given = ProgramInput(source(counting))
    assert given.sharding() == "program"
    with pytest.raises(ShardingError, match="does not ask for its share when it is called"):
        next(given.part(Shard(3, 1), 0, 1))
