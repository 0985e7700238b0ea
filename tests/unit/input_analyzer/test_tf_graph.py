"""Pipelines of tf.data as stages: names, lines, arguments, what functions do, what workers share."""

from __future__ import annotations

import inspect as python_inspect
import json
import os
import random
import re
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from input_analyzer.examine import examine
from input_analyzer.imports import on_import
from input_analyzer.measure.link import Order
from input_analyzer.standalone import called, program_of
from input_analyzer.tf import examine as of_graphs
from input_analyzer.tf.counting import count, initializers
from input_analyzer.tf.eager_graph import NeedsEagerError, in_graph
from input_rules.errors import WrongTypeError
from input_rules.handover import InputProgram, Shard
from input_rules.pipeline import AUTOTUNE, Pipeline, Stage
from input_rules.tf.fingerprint import fingerprint
from input_rules.tf.graph import Traced, trace
from input_rules.tf.inspection import inspect


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
    program = InputProgram(
        "tensorflow",
        make,
        lambda shard: make(shard.count, shard.index),
        lambda shard: iter(()),
        role=lambda shard: as_worker(shard.count, shard.index),
    )
    found = of_graphs.examine(
        program, Order(purpose="examine", socket="", stage_seconds=0.0), lambda doing: None
    )
    assert found.sharded is expected
    assert any("cannot be told" in note for note in found.notes) is (expected is None)
    assert random.getstate() == state
    assert inspect(make, workers=2).context.sharded is None


def test_what_was_not_compared_is_said() -> None:
    def slow(workers: int, index: int) -> Any:
        time.sleep(0.02)
        return not_at_all(workers, index)

    def alone(workers: int, index: int) -> Any:
        return tf.data.Dataset.from_tensor_slices([[1]][index])

    assert inspect(slow).context.sharded is False
    impatient = inspect(slow, patience_s=0.01)
    assert impatient.context.sharded is None
    assert "not looked at" in impatient.notes[0]
    assert "0.01 s" in impatient.notes[0]
    assert "as one of 9 workers it raises IndexError" in inspect(alone, workers=9).notes[0]


def permuted(draw: Callable[[int], Any]) -> Any:
    return tf.data.Dataset.from_tensor_slices(draw(40)).batch(4)


OWN_NUMBERS = np.random.default_rng()


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

    traced = trace(make, in_graph=in_graph)
    assert [stage.name for stage in traced.pipeline.stages] == ["range", "filter", "batch"]
    assert traced.pipeline.last.source is not None
    with traced.graph.as_default():
        batch = tf.compat.v1.data.make_one_shot_iterator(traced.dataset).get_next()
    with tf.compat.v1.Session(graph=traced.graph) as session:
        assert session.run(batch).tolist() == [0, 2]


COUNTER = tf.Variable(1, dtype=tf.int64)


def first_of(traced: Traced) -> Any:
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
    traced = trace(make, in_graph=in_graph)
    assert fingerprint(traced.graph) == fingerprint(trace(make, in_graph=in_graph).graph)
    assert first_of(traced) == expected
    counted = set(count(traced, 0.1).per_sample)
    assert counted == {stage.name for stage in traced.pipeline.stages}
    assert all(
        (stage.source and stage.source.startswith(__file__)) or "test_tf_graph.py:" in str(stage.source)
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
        (_compiled, r"what a tf.function has made, at .*test_tf_graph.py:\d+"),
        (_outside, r"has not seen being made, at .*test_tf_graph.py:\d+"),
        (
            _queue,
            r"a resource of TensorFlow \(FIFOQueueV2\).*, at .*test_tf_graph.py:\d+",
        ),
    ],
)
def test_what_works_only_eagerly_is_said_and_read_as_it_is(make: Callable[[], Any], reason: str) -> None:
    with pytest.raises(NeedsEagerError, match=reason):
        trace(make, in_graph=in_graph)
    order = Order(purpose="examine", socket="", stage_seconds=0.1)
    found = examine(program_of(make, make()), order, SimpleNamespace(send=lambda **said: None))  # type: ignore[arg-type]
    assert found["batch_size"] == 2
    assert found["stages"] == []
    (finding,) = found["findings"]
    assert (finding["id"], finding["op"]) == ("shard-missing", make.__name__)
    (note,) = found["notes"]
    assert re.search(f"cannot be made in a graph.*{reason}", note)
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
    function, made = called("numbers_of_four.py:make", lambda: order.append("prepared"), order.append)
    assert order == ["prepared", "calling numbers_of_four.py:make"]
    traced = trace(function, in_graph=in_graph)
    assert [stage.source for stage in traced.pipeline.stages] == [
        *["numbers_of_four.py:4"] * 2,
        *["numbers_of_four.py:9"] * 2,
    ]
    assert first_of(traced) == next(iter(made)).numpy().tolist() == [5, 6, 7, 8]


def test_what_follows_an_import_is_done_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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


def _worker() -> tuple[int, int]:
    config = json.loads(os.environ.get("TF_CONFIG", "{}"))
    role = config.get("task", {"type": "chief"})
    return (len(config["cluster"]["worker"]), role["index"]) if role["type"] == "worker" else (1, 0)


def _outside_of_it(values: Any) -> Any:
    return tf.cast(COUNTER, values.dtype) * values


def _eager_part() -> Any:
    return tf.data.Dataset.range(99).shard(*_worker()).batch(2).map(_outside_of_it)


def _eager_shuffled() -> Any:
    return tf.data.Dataset.range(99).shuffle(99).batch(2).map(_outside_of_it)


def _eager_by_chance() -> Any:
    return tf.data.Dataset.from_tensor_slices(OWN_NUMBERS.random([99])).batch(2).map(_outside_of_it)


@pytest.mark.parametrize(
    ("make", "sharded", "said"),
    [(_eager_part, True, 0), (_eager_shuffled, False, 0), (_eager_by_chance, None, 1)],
)
def test_records_tell_what_works_only_eagerly_shares(
    make: Callable[[], Any], sharded: bool | None, said: int
) -> None:
    order = Order(purpose="examine", socket="", stage_seconds=0.1)
    found = examine(program_of(make, make()), order, SimpleNamespace(send=lambda **said: None))  # type: ignore[arg-type]
    assert found["sharded"] is sharded
    assert len(found["findings"]) == (sharded is False)
    assert len([note for note in found["notes"] if "cannot be told" in note]) == said
