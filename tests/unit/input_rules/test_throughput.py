"""Which stages work side by side: what we say of TensorFlow against what TensorFlow runs."""

from __future__ import annotations

from typing import Any

import pytest
import tensorflow as tf

from input_rules.pipeline import Pipeline, Stage
from input_rules.tf.pipeline import trace
from input_rules.throughput import Lane, StageCost, assign_lanes, sample_time

AUTOTUNE = tf.data.AUTOTUNE


def python(x: Any) -> Any:
    return tf.ensure_shape(tf.numpy_function(lambda value: value, [x], tf.int64), x.shape)


def plain(x: Any) -> Any:
    return x + 1


def numbers() -> Any:
    return tf.data.Dataset.range(100).repeat()


def untuned(dataset: Any) -> Any:
    options = tf.data.Options()
    options.autotune.enabled = False
    return dataset.with_options(options)


def of(dataset: Any) -> dict[str, Lane]:
    return dict(assign_lanes(trace(lambda: dataset() if callable(dataset) else dataset).pipeline))


def test_stages_between_two_buffers_take_turns() -> None:
    found = of(lambda: numbers().map(python).shuffle(4).prefetch(2).map(python).shuffle(4).batch(2))
    first = [found[name].number for name in ("range", "repeat", "map", "shuffle")]
    second = [found[name].number for name in ("prefetch", "map_2", "shuffle_2", "batch")]
    assert len(set(first)) == len(set(second)) == 1
    assert first[0] != second[0]
    assert of(lambda: numbers().map(python).prefetch(0).batch(2))["prefetch"].number == 0


def test_parallel_calls_have_their_own_threads() -> None:
    found = of(
        lambda: numbers().map(python).map(plain, num_parallel_calls=3).map(python, AUTOTUNE).shuffle(2)
    )
    assert len({found[name].number for name in ("map", "map_2", "map_3", "shuffle")}) == 4
    assert [found["map_2"].threads_on(cpus) for cpus in (1, 2, 8)] == [1, 2, 3]
    assert [found["map_3"].threads_on(cpus) for cpus in (1, 2, 8)] == [1, 2, 8]
    assert found["map_3"].locked
    assert not found["map_2"].locked


def test_files_are_read_in_as_many_threads_as_a_cycle_has() -> None:
    def read(length: int | None, calls: int | None) -> Lane:
        return of(
            lambda: tf.data.Dataset.range(9).interleave(
                lambda x: tf.data.Dataset.range(x), cycle_length=length, num_parallel_calls=calls
            )
        )["interleave"]

    assert read(4, AUTOTUNE).threads_on(2) == 4
    assert read(4, 3).threads_on(8) == 3
    assert [read(AUTOTUNE, AUTOTUNE).threads_on(cpus) for cpus in (1, 3, 4, 7, 13, 16)] == [1, 1, 2, 3, 5, 6]
    assert not read(4, AUTOTUNE).pooled


# Of each pipeline whether TensorFlow makes the last map parallel, and runs it ahead of a batch.
WRITTEN = [
    (lambda: numbers().map(plain).shuffle(2), True, False),
    (lambda: numbers().map(plain).batch(2), True, True),
    (lambda: numbers().map(python).shuffle(2), False, False),
    (lambda: numbers().map(python).batch(2), False, True),
    (lambda: numbers().map(lambda x: x + tf.random.uniform([], 0, 9, tf.int64)).shuffle(2), False, False),
    (lambda: numbers().map(lambda x: tf.cond(x > 3, lambda: x, lambda: -x)).shuffle(2), True, False),
]


@pytest.mark.parametrize(("make", "parallel", "fused"), WRITTEN)
def test_what_tensorflow_changes_is_foreseen(make: Any, parallel: bool, fused: bool) -> None:
    found = of(make)
    assert (found["map"].threads_per_cpu > 0) == parallel
    assert (found["map"].number == found.get("shuffle", found.get("batch")).number) == (
        not parallel and not fused
    )
    iterator = iter(make())
    next(iterator)
    model = tf.data.experimental.get_model_proto(iterator)
    ran = {node.name for node in model.nodes.values()}
    assert ("MapAndBatch" in ran) == fused
    assert ("ParallelMapV2" in ran or "MapAndBatch" in ran) == (parallel or fused)


def test_nothing_is_changed_where_the_user_has_forbidden_it() -> None:
    found = of(lambda: untuned(numbers().map(plain).batch(2)))
    assert found["map"].number == found["batch"].number
    assert not found["map"].threads_per_cpu


def test_workers_of_a_loader_are_a_lane() -> None:
    def loader(workers: int) -> Pipeline:
        names = ("sampler", "getitem", "collate", "workers")
        stages = (Stage(name, name, i, attributes={"num_workers": workers}) for i, name in enumerate(names))
        return Pipeline("torch", tuple(stages))

    found = assign_lanes(loader(3))
    assert found["sampler"] == found["workers"] != found["getitem"]
    assert found["getitem"] == found["collate"] == Lane(1, 3)
    assert len(set(assign_lanes(loader(0)).values())) == 1


def cost(name: str, us: float, lane: Lane, *, waits: bool = False, once: bool = False) -> StageCost:
    cpu, wait = (0.0, us) if waits else (us, 0.0)
    return StageCost(name, "map", 0, us, cpu, wait, once, None, lane)


def test_threads_that_compete_for_cpus_are_counted() -> None:
    main = cost("main", 100, Lane(0))
    workers = [cost("get", 4000, Lane(1, 4), waits=True), cost("collate", 400, Lane(1, 4)), main]
    assert (sample_time(workers).threads, sample_time(workers).serial_us) == (4, 1100)
    slow_main = [*workers[:2], cost("main", 5000, Lane(0))]
    assert (sample_time(slow_main).threads, sample_time(slow_main).serial_us) == (1, 5000)
    pooled = [cost("far", 8000, Lane(0, 8, pooled=True), waits=True)]
    assert sample_time(pooled).threads == 1, "the pool has no more threads than there are CPUs"
    locked = [cost("python", 4000, Lane(0, 4, locked=True))]
    assert (sample_time(locked).threads, sample_time(locked).serial_us) == (1, 4000)


def test_stages_without_times_say_nothing_of_more_cpus() -> None:
    assert sample_time([]) is None
    assert sample_time([StageCost("map", "map", 0)]) is None
