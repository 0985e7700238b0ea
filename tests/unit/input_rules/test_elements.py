"""Sizes that are unknown before a run: the reported call, the advice, and that it helps."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from input_rules.findings import Finding
from input_rules.rules import find
from input_rules.rules.base import Context, is_batched
from input_rules.tf.pipeline import trace

SIZES = ("drop-remainder-missing", "shape-unknown")
ROWS = np.zeros((20, 3), np.float32)
EXAMPLE = {"x": tf.io.FixedLenFeature([], tf.float32)}
HELPERS = """
import tensorflow as tf
def load(dataset):
    return dataset.map(lambda x: x + 1).shuffle(30, seed=1).repeat().batch(8).map(lambda x: x).prefetch(2)
"""


def numbers() -> Any:
    return tf.data.Dataset.range(20).map(lambda x: tf.cast(x, tf.float32))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Small pictures in two folders, a table, a file of records, a package with a helper."""
    path = tmp_path_factory.mktemp("sizes")
    for number in range(6):
        (path / "images" / str(number % 2)).mkdir(parents=True, exist_ok=True)
        picture = tf.io.encode_png(np.zeros((4, 4, 3), np.uint8)).numpy()
        (path / "images" / str(number % 2) / f"{number}.png").write_bytes(picture)
    (path / "table.csv").write_text("x,y\n" + "1,2\n" * 20)
    with tf.io.TFRecordWriter(str(path / "some.tfrecord")) as writer:
        feature = {"x": tf.train.Feature(float_list=tf.train.FloatList(value=[1.0]))}
        for _ in range(20):
            writer.write(tf.train.Example(features=tf.train.Features(feature=feature)).SerializeToString())
    (path / "site-packages").mkdir()
    (path / "site-packages" / "size_helpers.py").write_text(HELPERS)
    return path


def helpers(folder: Path) -> Any:
    spec = importlib.util.spec_from_file_location("h", folder / "site-packages" / "size_helpers.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def images(folder: Path, **settings: Any) -> Any:
    return tf.keras.utils.image_dataset_from_directory(
        folder / "images", image_size=(4, 4), **{"batch_size": 4, **settings}
    )


def table(folder: Path, **settings: Any) -> Any:
    return tf.data.experimental.make_csv_dataset(str(folder / "table.csv"), 8, label_name="y", **settings)


def examples(folder: Path, **settings: Any) -> Any:
    file = str(folder / "some.tfrecord")
    return tf.data.experimental.make_batched_features_dataset(file, 8, EXAMPLE, **settings)


def whole(dataset: Any) -> Any:
    return dataset.batch(4, drop_remainder=True)


Make = Callable[[Path], Any]
LIBRARIES: dict[str, tuple[str, str, Make, Make]] = {
    "images": ("image_dataset_from_directory", "batch_size=None", images,
               lambda f: whole(images(f, batch_size=None))),
    "table": ("make_csv_dataset", "num_epochs=None", lambda f: table(f, num_epochs=1), table),
    "examples": ("make_batched_features_dataset", "drop_final_batch=True",
                 lambda f: examples(f, num_epochs=1),
                 lambda f: examples(f, num_epochs=1, drop_final_batch=True)),
    "a package": ("load", "unbatch().batch(8, drop_remainder=True)", lambda f: helpers(f).load(numbers()),
                  lambda f: whole(helpers(f).load(numbers()).unbatch())),
    "map_and_batch": ("map_and_batch", "drop_remainder=True",
                      lambda f: numbers().apply(tf.data.experimental.map_and_batch(lambda x: x, 8)),
                      lambda f: whole(numbers())),
}  # fmt: skip
"""By name: the reported call, a part of the advice, the input without and with it."""


def ragged() -> Any:
    return tf.data.Dataset.range(20).map(lambda x: tf.range(x))


def found(make: Callable[[], Any], *, training: bool = True) -> list[Finding]:
    findings = find(trace(make).pipeline, Context(training=training))
    return [finding for finding in findings if finding.id in SIZES]


@pytest.mark.parametrize("name", LIBRARIES)
def test_batches_that_a_library_makes_are_reported(name: str, folder: Path) -> None:
    op, recommended, make, changed = LIBRARIES[name]
    (finding,) = found(lambda: make(folder))
    assert (finding.id, finding.severity, finding.op) == ("drop-remainder-missing", "error", op)
    assert str(finding.source).rpartition(":")[0].endswith(Path(__file__).name)
    assert recommended in finding.recommended
    assert found(lambda: changed(folder)) == []


def test_an_evaluation_of_a_table_is_batched_again(folder: Path) -> None:
    (finding,) = found(lambda: table(folder, num_epochs=1), training=False)
    assert finding.recommended.startswith("unbatch().batch(8, drop_remainder=True)")
    assert found(lambda: whole(table(folder, num_epochs=1).unbatch())) == []


def test_ragged_values_are_no_datasets() -> None:
    def make() -> Any:
        rows = tf.ragged.constant([[number] * (number % 4 + 1) for number in range(20)])
        return tf.data.Dataset.from_tensor_slices(rows).map(tf.reduce_sum).batch(8)

    assert trace(make).pipeline.stages[0].op == "from_tensor_slices"


UNKNOWN: dict[str, tuple[str, Callable[[], Any]]] = {
    "records": ("map", lambda: whole(ragged())),
    "batches": ("map", lambda: whole(numbers()).map(lambda x: tf.boolean_mask(x, x > 3))),
    "any shape": ("map", lambda: whole(numbers()).map(lambda x: tf.numpy_function(np.sin, [x], tf.float32))),
    "generator": ("from_generator", lambda: tf.data.Dataset.from_generator(
        lambda: iter([ROWS]), output_signature=tf.TensorSpec([None, 3], tf.float32))),
    "padding": ("padded_batch", lambda: ragged().padded_batch(4, drop_remainder=True)),
    "two sizes": ("concatenate", lambda: whole(numbers()).concatenate(
        numbers().batch(5, drop_remainder=True))),
    "windows": ("flat_map", lambda: numbers().window(4).flat_map(lambda w: w.batch(4))),
    "buckets": ("bucket_by_sequence_length", lambda: ragged().bucket_by_sequence_length(
        lambda x: tf.size(x), [9], [4, 4])),
    "ragged": ("ragged_batch", lambda: ragged().ragged_batch(4, drop_remainder=True)),
}  # fmt: skip
"""Inputs with an unknown size for another reason than a smaller last batch, and the reported call."""


def test_what_is_recommended_for_windows_and_buckets_helps() -> None:
    assert found(lambda: numbers().window(4).flat_map(whole)) == []
    assert found(lambda: ragged().padded_batch(4, padded_shapes=[20], drop_remainder=True)) == []
    (windows,) = found(UNKNOWN["windows"][1])
    assert "in its function" in windows.recommended
    (buckets,) = found(UNKNOWN["buckets"][1])
    assert buckets.recommended.startswith("padded_batch(N, padded_shapes=")


@pytest.mark.parametrize("name", UNKNOWN)
def test_other_unknown_sizes_are_reported_once(name: str) -> None:
    op, make = UNKNOWN[name]
    (finding,) = found(make)
    assert (finding.id, finding.severity, finding.op) == ("shape-unknown", "error", op)
    assert "?" in finding.message or "of any shape" in finding.message


def test_both_findings_are_reported_where_both_are_true() -> None:
    def rows() -> Any:
        return tf.keras.utils.timeseries_dataset_from_array(ROWS, None, 4, batch_size=8)

    assert [(finding.id, finding.op) for finding in found(rows)] == [
        (identifier, "timeseries_dataset_from_array") for identifier in SIZES
    ]


def test_smaller_batches_within_are_no_matter() -> None:
    """Rebatched or checked elements have one size; batches of batches multiply."""
    assert found(lambda: whole(numbers().batch(8).unbatch())) == []
    assert found(lambda: numbers().repeat().batch(4).map(lambda x: tf.ensure_shape(x, [4]))) == []
    assert len(found(lambda: whole(numbers().batch(8)))) == 1


def test_a_tensor_that_is_no_tensor_has_no_size() -> None:
    assert found(lambda: whole(numbers()).map(lambda x: (x, None))) == []


def test_calls_of_libraries_batch_repeat_and_prefetch(folder: Path) -> None:
    pipeline = trace(lambda: helpers(folder).load(numbers())).pipeline
    assert pipeline.samples_per_element == 8
    ids = {finding.id for finding in find(pipeline, Context())}
    assert ids.isdisjoint({"repeat-missing", "prefetch-missing"})
    kept = trace(lambda: images(folder).repeat()).pipeline
    assert kept.samples_per_element == 4
    again = trace(lambda: whole(numbers()).rebatch(2, drop_remainder=True)).pipeline
    assert again.samples_per_element == 2


RECORDS = np.zeros((100, 4), np.float32)


def slices() -> Any:
    return tf.data.Dataset.from_tensor_slices(RECORDS)


def sampled(seed: int | None = 1) -> Any:
    return tf.data.Dataset.sample_from_datasets([slices().repeat(), slices().repeat()], [0.5, 0.5], seed)


def resampled() -> Any:
    even = slices().rejection_resample(lambda x: tf.cast(x[0], tf.int32), [0.5, 0.5], [0.5, 0.5], seed=1)
    return even.map(lambda number, x: x)


def numbered() -> Any:
    return tf.data.Dataset.zip((slices(), tf.data.Dataset.random(1).batch(2))).map(lambda x, numbers: x)


def taken_apart() -> Any:
    return slices().batch(10).flat_map(tf.data.Dataset.from_tensor_slices)


def of_windows() -> Any:
    return slices().window(4, drop_remainder=True).flat_map(lambda x: x.batch(4, drop_remainder=True))


OF_RECORDS: dict[str, Callable[[], Any]] = {
    "sampled": sampled,
    "resampled": resampled,
    "numbered": numbered,
    "unbatched": lambda: slices().batch(10).map(tf.nn.relu).unbatch(),
    "taken_apart": taken_apart,
    "of_windows": of_windows,
    "chosen": lambda: tf.data.Dataset.choose_from_datasets(
        [slices(), slices()], tf.data.Dataset.range(2).batch(2).repeat().unbatch()
    ),
}
OF_BATCHES: dict[str, Callable[[], Any]] = {
    "batch": lambda: slices().batch(10).map(tf.nn.relu),
    "twice": lambda: slices().batch(10).batch(2, drop_remainder=True).unbatch(),
    "rebatch": lambda: slices().batch(10).rebatch(5),
    "sampled": lambda: tf.data.Dataset.sample_from_datasets([slices().batch(10), slices().batch(10)], seed=1),
    "within": lambda: tf.data.Dataset.range(3).interleave(lambda number: slices().batch(10)),
    "numbers": lambda: tf.data.Dataset.random(1).batch(10),
    "numbered": lambda: tf.data.Dataset.zip((slices().batch(9), tf.data.Dataset.random(1))),
}


def rules(make: Callable[[], Any]) -> dict[str, str]:
    pipeline = trace(make).pipeline
    return {finding.id: finding.message for finding in find(pipeline, Context())}


@pytest.mark.parametrize("name", OF_RECORDS)
def test_records_may_be_shuffled_and_sharded(name: str) -> None:
    make = OF_RECORDS[name]
    assert not is_batched(trace(make).pipeline.last)
    assert trace(make).pipeline.samples_per_element == 1

    def small() -> Any:
        return make().shard(2, 0).shuffle(10, seed=1).repeat().batch(8, drop_remainder=True)

    found = rules(small)
    assert found.keys().isdisjoint({"shuffle-after-batch", "shard-after-batch"})
    assert "the buffer holds 10 records, batches have 8" in found["shuffle-buffer-small"]


@pytest.mark.parametrize("name", OF_BATCHES)
def test_batches_should_not(name: str) -> None:
    make = OF_BATCHES[name]
    assert is_batched(trace(make).pipeline.last)
    assert "shuffle-after-batch" in rules(lambda: make().shuffle(2, seed=1))
    assert "shard-after-batch" in rules(lambda: make().shard(2, 0))


def characters() -> Any:
    return tf.data.Dataset.range(1000).batch(10, drop_remainder=True).map(lambda x: (x[:-1], x[1:]))


def windows() -> Any:
    return tf.data.Dataset.range(1000).window(9, 9, drop_remainder=True).flat_map(lambda x: x.batch(9))


@pytest.mark.parametrize(("make", "maker"), [(characters, "batch"), (windows, "window")])
def test_elements_that_are_batched_again_are_records(make: Callable[[], Any], maker: str) -> None:
    def small() -> Any:
        return make().shuffle(10, seed=1).batch(8)

    by_name = trace(small).pipeline.by_name
    assert by_name["range"].attributes["part"]
    assert by_name[maker].attributes["makes_record"]
    found = {finding.id: finding for finding in find(trace(small).pipeline, Context(sharded=False))}
    assert "the buffer holds 10 records, batches have 8" in found["shuffle-buffer-small"].message
    assert found["shard-missing"].op == maker
    assert found.keys().isdisjoint({"shuffle-after-batch", "shard-after-batch"})
    assert rules(lambda: make().shard(2, 0).batch(8)).keys().isdisjoint({"shard-after-batch", "shard-late"})
    # What mixes parts of records is the author's, and nothing is called for a record before there is one.
    mixed = rules(lambda: tf.data.Dataset.range(99).shuffle(2, 1).map(lambda x: x * 2).batch(9).batch(2))
    assert mixed.keys().isdisjoint({"shuffle-buffer-small", "map-before-batch"})


def test_the_last_record_may_be_smaller() -> None:
    assert (
        "it makes records, and the last one may be smaller"
        in rules(lambda: tf.data.Dataset.range(99).batch(10).batch(2, drop_remainder=True))[
            "drop-remainder-missing"
        ]
    )


def test_the_samples_of_what_was_unbatched() -> None:
    again = trace(lambda: slices().batch(10, drop_remainder=True).batch(2).unbatch()).pipeline
    assert again.samples_per_element == 10


@pytest.mark.parametrize(
    ("inner", "read"), [(tf.data.TextLineDataset, "files"), (tf.data.Dataset, "datasets")]
)
def test_an_interleave_names_the_kind_of_its_inputs(inner: Any, read: str) -> None:
    def of_names() -> Any:
        names = tf.data.Dataset.from_tensor_slices(["/data/a", "/data/b"])
        made = inner if read == "files" else inner.from_tensors
        return names.interleave(made, cycle_length=2, num_parallel_calls=2)

    assert f"it reads 2 {read} at once" in rules(of_names)["cycle-length-fixed"]
