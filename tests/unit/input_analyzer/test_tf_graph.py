"""Pipelines of tf.data as stages: names, lines, arguments, what functions do, what workers share."""

from __future__ import annotations

import inspect as python_inspect
import os
import random
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from input_analyzer.errors import InputEndedError, WrongTypeError
from input_analyzer.examine import examine
from input_analyzer.handover import Shard
from input_analyzer.measure.link import Order
from input_analyzer.pipeline import AUTOTUNE, Pipeline, Stage
from input_analyzer.standalone import mended_batches, program_of
from input_analyzer.tf.counting import count, initializers
from input_analyzer.tf.eager_graph import NeedsEagerError
from input_analyzer.tf.fingerprint import fingerprint
from input_analyzer.tf.graph import trace
from input_analyzer.tf.inspection import inspect


def pipeline_of(make: Callable[[], Any], seed: int | None = None) -> Pipeline:
    return trace(make, seed).pipeline


def line_of(marker: str) -> str:
    """The line of this file that ends with a comment."""
    lines = Path(__file__).read_text().splitlines()
    (number,) = [n for n, line in enumerate(lines, 1) if line.endswith(f"# {marker}")]
    return f"{Path(__file__).name}:{number}"


def everything() -> Any:
    files = tf.data.Dataset.from_tensor_slices(["/a/1", "/a/2", "/a/3"])
    lines = files.interleave(tf.data.TextLineDataset, cycle_length=2)  # interleave here
    records = tf.data.TFRecordDataset(["/a/1", "/a/2"], num_parallel_reads=2)
    zipped = tf.data.Dataset.zip((lines, records))
    both = zipped.map(lambda a, b: a, num_parallel_calls=3).map(tf.strings.length)  # two maps
    mixed = tf.data.Dataset.sample_from_datasets([both, both.shuffle(7, seed=3)])
    return mixed.enumerate().repeat(2).batch(4, drop_remainder=True).prefetch(tf.data.AUTOTUNE)


def test_stages_are_the_calls_of_the_user() -> None:
    pipeline = pipeline_of(everything)
    assert [stage.name for stage in pipeline.stages] == [
        *["from_tensor_slices", "interleave", "TFRecordDataset", "zip", "map", "map_2", "shuffle"],
        *["sample_from_datasets", "enumerate", "repeat", "batch", "prefetch"],
    ]
    by_name = pipeline.by_name
    assert by_name["zip"].inputs == ("interleave", "TFRecordDataset")
    assert by_name["sample_from_datasets"].inputs == ("map_2", "shuffle")
    assert by_name["enumerate"].inputs == ("sample_from_datasets",)
    assert str(by_name["interleave"].source).endswith(line_of("interleave here"))
    assert by_name["map"].source == by_name["map_2"].source
    assert str(by_name["map"].source).endswith(line_of("two maps"))
    assert pipeline.samples_per_element == 4
    assert [stage.position for stage in pipeline.stages] == list(range(12))


def test_arguments_and_what_functions_do() -> None:
    by_name = pipeline_of(everything).by_name
    found = {name: by_name[name].attributes for name in by_name}
    assert found["map"]["num_parallel_calls"] == 3
    assert "num_parallel_calls" not in found["map_2"]
    assert found["map"]["free"] is True
    assert found["map_2"]["free"] is False
    assert found["interleave"]["reads"] == "TextLineDataset"
    assert found["from_tensor_slices"]["files"] == 3
    assert found["TFRecordDataset"]["files"] == 2
    assert found["shuffle"]["buffer_size"] == 7
    assert found["shuffle"]["seed"] != 0
    assert found["repeat"]["count"] == 2
    assert found["batch"]["drop_remainder"] is True
    assert found["prefetch"]["buffer_size"] == AUTOTUNE


def test_python_random_and_single_records_are_told() -> None:
    def make() -> Any:
        numbers = tf.data.Dataset.range(9)
        called = numbers.map(lambda x: tf.numpy_function(lambda y: y, [x], tf.int64))
        drawn = called.map(lambda x: tf.random.uniform([]))
        keyed = drawn.map(lambda x: tf.random.stateless_uniform([], [1, 2]) + x)
        return keyed.map(lambda x: tf.io.decode_png(tf.io.read_file("/a"))[0, 0, 0])

    stages = pipeline_of(make).stages[1:]
    traits = ("python", "random", "single")
    assert [[stage.attributes[name] for name in traits] for stage in stages] == [
        [True, False, True],
        [False, True, False],
        [False, False, False],
        [False, False, True],
    ]


def test_calls_in_a_loop_are_stages_each() -> None:
    def make() -> Any:
        dataset = tf.data.Dataset.range(3)
        for _ in range(2):
            dataset = dataset.enumerate().map(lambda i, x: x)
        return dataset

    names = [stage.name for stage in pipeline_of(make).stages]
    assert names == ["range", "enumerate", "map", "enumerate_2", "map_2"]


def test_lines_of_libraries_are_not_the_users(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "site-packages"
    folder.mkdir()
    (folder / "borrowed_data.py").write_text(
        "import tensorflow as tf\ndef load():\n    return tf.data.Dataset.range(5).map(lambda x: x + 1)\n"
    )
    monkeypatch.syspath_prepend(str(folder))
    import borrowed_data  # type: ignore[import-not-found]

    pipeline = pipeline_of(lambda: borrowed_data.load().batch(5))  # load here
    sys.modules.pop("borrowed_data")
    assert [stage.op for stage in pipeline.stages] == ["load", "batch"]
    assert all(str(stage.source).endswith(line_of("load here")) for stage in pipeline.stages)


def test_other_results_are_refused() -> None:
    with pytest.raises(WrongTypeError, match=r"returned SymbolicTensor, expected a tf.data.Dataset or"):
        trace(lambda: tf.constant(1))


def test_errors_of_the_input_function_are_its_own() -> None:
    def broken() -> Any:
        raise KeyError("no such column")

    with pytest.raises(KeyError, match="no such column"):
        trace(broken)


def shard_by_slices(workers: int, index: int) -> Any:
    return tf.data.Dataset.from_tensor_slices(np.arange(10)[index::workers])


def shard_by_filter(workers: int, index: int) -> Any:
    return tf.data.Dataset.range(10).filter(lambda x: tf.equal(x % workers, index))


def shard_by_seed(workers: int, index: int) -> Any:
    return tf.data.Dataset.range(10).shuffle(10, seed=index + 1)


def shard_by_method(workers: int, index: int) -> Any:
    return tf.data.Dataset.range(10).shard(workers, index)


def not_at_all(workers: int, index: int) -> Any:
    return tf.data.Dataset.range(10).map(lambda x: x + 1).shuffle(10).batch(2)


@pytest.mark.parametrize(
    ("make", "expected"),
    [
        (shard_by_slices, True),
        (shard_by_filter, True),
        (shard_by_seed, True),
        (shard_by_method, True),
        (not_at_all, False),
    ],
)
def test_whether_two_workers_read_the_same(make: Callable[[int, int], Any], expected: bool) -> None:
    assert inspect(make, workers=3).context.sharded is expected


def of_generator(first: int, step: int, content: Callable[[int], int] = lambda k: k) -> Any:
    def generate() -> Iterator[int]:
        return map(content, range(first, 400, step))

    return tf.data.Dataset.from_generator(generate, output_signature=tf.TensorSpec([], tf.int64)).batch(4)


def told() -> tuple[int, int]:
    """What a worker finds in its environment: its index, their number."""
    index, workers = os.environ.get("WORKER", "0 1").split()
    return int(index), int(workers)


@contextmanager
def as_worker(workers: int, index: int) -> Iterator[None]:
    os.environ["WORKER"] = f"{index} {workers}"
    yield
    del os.environ["WORKER"]


def by_environment(workers: int, index: int) -> Any:
    def generate() -> Iterator[int]:
        yield from range(*told()[:1], 400, told()[1])

    return tf.data.Dataset.from_generator(generate, output_signature=tf.TensorSpec([], tf.int64)).batch(4)


@pytest.mark.parametrize(
    ("make", "expected"),
    [
        # No graph shows what a generator reads: each worker its part, all of them the same, or as it happens.
        (lambda workers, index: of_generator(index, workers), True),
        (by_environment, True),
        (lambda workers, index: of_generator(0, 1), False),
        (lambda workers, index: of_generator(0, 1).unbatch().shuffle(50).batch(4), False),
        (lambda workers, index: of_generator(0, 1, lambda k: random.randrange(1000)), False),
        (lambda workers, index: of_generator(0, 1, random.SystemRandom().randrange), None),
        (lambda workers, index: of_generator(index, workers, lambda k: 7), None),
        (lambda workers, index: of_generator(0, 1).map(lambda x: 1 // (x - x)), None),
    ],
)
def test_records_tell_what_python_reads(make: Callable[[int, int], Any], expected: bool | None) -> None:
    state = random.getstate()
    assert inspect(make, workers=2, role=as_worker).context.sharded is expected
    assert random.getstate() == state
    assert inspect(make, workers=2).context.sharded is None


def test_two_traces_of_one_function_have_one_fingerprint() -> None:
    assert len({fingerprint(trace(everything).graph) for _ in range(3)}) == 1


def test_before_and_after_walk_graphs() -> None:
    stages = (
        Stage("a", "range", 0),
        Stage("b", "range", 1),
        Stage("c", "zip", 2, ("a", "b")),
        Stage("d", "map", 3, ("a",)),
        Stage("e", "zip", 4, ("c", "d")),
    )
    pipeline = Pipeline("tensorflow", stages)
    assert [stage.name for stage in pipeline.before(stages[4])] == ["c", "d", "a", "b"]
    assert [stage.name for stage in pipeline.after(stages[0])] == ["c", "d", "e"]
    assert [stage.name for stage in pipeline.after(stages[1])] == ["c", "e"]
    assert python_inspect.isgenerator(pipeline.before(stages[0]))


OUTSIDE = tf.constant(2, tf.int64)


def test_functions_for_eager_execution_mean_what_they_say() -> None:
    def make() -> Any:
        return tf.data.Dataset.range(10).filter(lambda x: x % OUTSIDE == 0).batch(2)

    traced = trace(make, eager=True)
    assert [stage.name for stage in traced.pipeline.stages] == ["range", "filter", "batch"]
    assert traced.pipeline.last.source is not None
    with traced.graph.as_default():
        batch = tf.compat.v1.data.make_one_shot_iterator(traced.dataset).get_next()
    with tf.compat.v1.Session(graph=traced.graph) as session:
        assert session.run(batch).tolist() == [0, 2]


COUNTER = tf.Variable(1, dtype=tf.int64)


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


@pytest.mark.parametrize("make", [_table, _counter, _layer])
def test_tables_and_variables_that_a_function_makes_are_made_in_its_graph(make: Callable[[], Any]) -> None:
    expected = next(iter(make())).numpy().tolist()
    leaving = tf.init_scope
    traced = trace(make, eager=True)
    assert tf.init_scope is leaving
    assert fingerprint(traced.graph) == fingerprint(trace(make, eager=True).graph)
    with traced.graph.as_default():
        batch = tf.compat.v1.data.make_initializable_iterator(traced.dataset)
        values = batch.get_next()
    with tf.compat.v1.Session(graph=traced.graph) as session:
        session.run(initializers(traced.graph))
        session.run(batch.initializer)
        assert session.run(values).tolist() == expected
    assert set(count(traced, 0.1).per_sample) == {"range", "map", "batch"}


def _outside() -> Any:
    return tf.data.Dataset.range(3).map(lambda x: x + COUNTER).repeat().batch(2, drop_remainder=True)


def _eager_value() -> Any:
    size = int(tf.reduce_sum([1, 1]).numpy())
    return tf.data.Dataset.range(3).repeat().batch(size, drop_remainder=True)


def _inserted() -> Any:
    table = tf.lookup.experimental.MutableHashTable(tf.int64, tf.int64, -1)
    table.insert(tf.constant([1], tf.int64), tf.constant([5], tf.int64))
    return tf.data.Dataset.range(3).map(table.lookup).repeat().batch(2, drop_remainder=True)


def _made_of_another() -> Any:
    first = tf.Variable(3, dtype=tf.int64)
    second = tf.Variable(first + 1)
    return tf.data.Dataset.range(3).map(lambda x: x + second).repeat().batch(2, drop_remainder=True)


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (_outside, "uses a variable, table or dataset that was made before it was called"),
        (_eager_value, r"AttributeError: 'SymbolicTensor' .* 'numpy', at .*test_tf_graph.py:\d+"),
        (_inserted, "changes a variable or a table itself"),
        (_made_of_another, "needs another one to be made first"),
    ],
)
def test_what_works_only_eagerly_is_said_and_read_as_it_is(make: Callable[[], Any], reason: str) -> None:
    with pytest.raises(NeedsEagerError, match=reason):
        trace(make, eager=True)
    order = Order(purpose="examine", socket="", apply=True, stage_seconds=0.1)
    found = examine(program_of(make, make()), order, SimpleNamespace(send=lambda **said: None))  # type: ignore[arg-type]
    assert found["batch_size"] == 2
    assert (found["stages"], found["findings"], found["applied"]) == ([], [], [])
    (note,) = found["notes"]
    assert re.search(f"only when it is called eagerly.*{reason}", note)
    batches = mended_batches(make, frozenset({"repeat-missing"}), Shard(1, 0))
    expected = [batch.numpy().tolist() for batch in make().take(3)]
    assert [next(batches)[0].tolist() for _ in range(3)] == expected


def test_an_input_that_ends_early_is_read_as_it_will_be_mended() -> None:
    def make() -> Any:
        return tf.data.Dataset.range(70).map(lambda x: x + 1).batch(8)

    def examined(*, apply: bool) -> Any:
        order = Order(purpose="examine", socket="", apply=apply, stage_seconds=0.0)
        return examine(program_of(make, make()), order, SimpleNamespace(send=lambda **said: None))  # type: ignore[arg-type]

    with pytest.raises(InputEndedError, match="after 9 batches"):
        examined(apply=False)
    found = examined(apply=True)
    assert found["batch_size"] == 8
    assert any(change.startswith("repeat()") for change in found["applied"])
