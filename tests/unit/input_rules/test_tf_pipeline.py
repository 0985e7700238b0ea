"""Pipelines of tf.data as stages: names, lines, arguments, what functions do, what workers share."""

from __future__ import annotations

import inspect as python_inspect
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from input_rules.errors import WrongTypeError
from input_rules.pipeline import AUTOTUNE, Pipeline, Stage
from input_rules.tf.inspection import fingerprint, inspect
from input_rules.tf.pipeline import trace


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


def test_arguments_and_effects_of_functions_are_read() -> None:
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


def test_python_random_and_single_records_are_reported() -> None:
    def make() -> Any:
        numbers = tf.data.Dataset.range(9)
        called = numbers.map(lambda x: tf.numpy_function(lambda y: y, [x], tf.int64))
        drawn = called.map(lambda x: tf.random.uniform([]))
        keyed = drawn.map(lambda x: tf.random.stateless_uniform([], [1, 2]) + x)
        return keyed.map(lambda x: tf.io.decode_png(tf.io.read_file("/a"))[0, 0, 0])

    stages = pipeline_of(make).stages[1:]
    traits = ("python", "random", "batch_form")
    assert [[stage.attributes[name] for name in traits] for stage in stages] == [
        [True, False, True],
        [False, True, False],
        [False, False, False],
        [False, False, False],
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


def test_inputs_that_could_not_be_compared_are_reported() -> None:
    def slow(workers: int, index: int) -> Any:
        time.sleep(0.02)
        return not_at_all(workers, index)

    def alone(workers: int, index: int) -> Any:
        return tf.data.Dataset.from_tensor_slices([[1]][index])

    assert inspect(slow).context.sharded is False
    impatient = inspect(slow, patience_s=0.01)
    assert impatient.context.sharded is None
    assert "not checked" in impatient.notes[0]
    assert "0.01 s" in impatient.notes[0]
    assert "as one of 9 workers, it raises IndexError" in inspect(alone, workers=9).notes[0]


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
