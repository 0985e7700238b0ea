"""An analysis writes none of the user's caches and snapshots, and does not change existing ones."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import tensorflow as tf
from tensorflow.python.ops import gen_dataset_ops, gen_experimental_dataset_ops

from input_analyzer import gains
from input_analyzer.child import keep_files_apart
from input_analyzer.measure.examine import Overlap
from input_analyzer.measure.link import Order
from input_analyzer.tf import private_files
from input_analyzer.tf.compare import compare
from input_analyzer.tf.eager_graph import rebuild_in_graph
from input_analyzer.tf.examine import overlap_of_workers
from input_analyzer.tf.rebuild import initializers
from input_rules.input_export import InputProgram
from input_rules.tf.inspection import fingerprint
from input_rules.tf.pipeline import TracedDataset, trace

Make = Callable[[str], Any]


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder that files are kept in; the operations are as before at the end of the test."""
    for module, names in (
        (gen_dataset_ops, ("cache_dataset", "cache_dataset_v2")),
        (gen_experimental_dataset_ops, ("snapshot_dataset", "snapshot_dataset_v2")),
    ):
        for name in names:
            monkeypatch.setattr(module, name, getattr(module, name))
    for name, empty in (("_folders", []), ("_kept", {})):
        monkeypatch.setattr(private_files, name, empty)
    return tmp_path / "own"


def numbers(path: str) -> Any:
    return tf.data.Dataset.range(20).map(lambda number: number + 1)


def cached(path: str) -> Any:
    return numbers(path).cache(path)


def snapshotted(path: str) -> Any:
    return numbers(path).snapshot(path)


def cached_within(path: str) -> Any:
    parts = tf.data.Dataset.range(2)
    return parts.flat_map(
        lambda part: numbers(path).cache(tf.strings.join([path, tf.strings.as_string(part)]))
    )


def values(dataset: Any) -> list[int]:
    return [int(value) for value in dataset]


def files(folder: Path) -> dict[str, int]:
    """Times of the last changes, but of those of what autograph writes."""
    found = (file for file in folder.rglob("*") if file.is_file() and "__autograph" not in file.name)
    return {str(file): file.stat().st_mtime_ns for file in found}


@pytest.mark.parametrize("make", [cached, snapshotted, cached_within])
@pytest.mark.parametrize("in_graph", [False, True])
def test_what_a_dataset_keeps_on_disk_is_kept_in_the_folder_of_the_analysis(
    tmp_path: Path, own: Path, make: Make, in_graph: bool
) -> None:
    users = tmp_path / "users"
    users.mkdir()
    private_files.keep_apart(own)
    if in_graph:
        with tf.Graph().as_default(), tf.compat.v1.Session() as session:
            element = tf.compat.v1.data.make_one_shot_iterator(make(f"{users}/kept")).get_next()
            with suppress(tf.errors.OutOfRangeError):
                while True:
                    session.run(element)
    else:
        assert values(make(f"{users}/kept"))[:20] == list(range(1, 21))
    assert not files(users)
    assert files(own)
    if make is not cached_within:
        (note,) = private_files.notes()
        assert note.startswith(f"{users}/kept: written to a temporary folder of the analysis instead")


@pytest.mark.parametrize("make", [cached, snapshotted])
def test_complete_files_are_kept_and_written_elsewhere(tmp_path: Path, own: Path, make: Make) -> None:
    users = tmp_path / "users"
    users.mkdir()
    path = f"{users}/kept"
    assert values(make(path)) == list(range(1, 21))
    before = files(users)
    private_files.keep_apart(own)
    assert values(make(path)) == list(range(1, 21))
    assert files(users) == before
    assert files(own)


def test_every_process_of_an_analysis_has_its_own_folder(tmp_path: Path, own: Path) -> None:
    keep_files_apart(Order(purpose="copy", socket=f"{tmp_path}/link", copy_index=3, copies=4))
    assert values(cached(f"{tmp_path}/kept")) == list(range(1, 21))
    assert {Path(file).parent for file in files(tmp_path)} == {tmp_path / "files3"}


@pytest.mark.parametrize("kind", ["cache", "snapshot"])
def test_records_of_two_workers_are_distinguished_though_both_keep_them_in_one_file(
    tmp_path: Path, own: Path, kind: str
) -> None:
    def traced(index: int) -> TracedDataset:
        def make() -> Any:
            spec = tf.TensorSpec([], tf.int64)
            mine = tf.data.Dataset.from_generator(lambda: iter(range(index, 20, 2)), output_signature=spec)
            return getattr(mine, kind)(f"{tmp_path}/kept")

        return trace(make)

    private_files.keep_apart(own)
    assert overlap_of_workers(traced, lambda index: nullcontext()) is Overlap.NONE


def test_a_cache_in_memory_stays_there(own: Path) -> None:
    private_files.keep_apart(own)
    assert values(cached("")) == list(range(1, 21))
    assert not files(own)
    assert private_files.notes() == ()


def test_rates_with_and_without_a_change_are_compared_though_both_write_a_cache(
    tmp_path: Path, own: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def make() -> Any:
        records = tf.data.Dataset.range(1 << 40).map(lambda number: number + 1)
        return records.cache(f"{tmp_path}/kept").batch(64, drop_remainder=True)

    private_files.keep_apart(own)
    monkeypatch.setattr(gains, "TURN_S", 0.02)
    monkeypatch.setattr(gains, "WARM_UP_S", 0.02)
    monkeypatch.setattr(gains, "FEWEST_ROUNDS", 2)  # on a busy machine a batch may take long
    program = InputProgram("tensorflow", make, lambda shard: make(), lambda shard: iter(()))
    ratio = compare(program, {"prefetch-missing": None}, 1.0, lambda: None)
    assert ratio is not None
    assert not list(tmp_path.glob("kept*"))


ROWS = 1000


@pytest.fixture(autouse=True)
def few_bytes_are_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(private_files, "LARGE", ROWS)


def _values(dtype: Any) -> Any:
    return np.arange(ROWS * 3).reshape(ROWS, 3).astype(dtype)


def test_a_graph_holds_no_large_data_and_distinguishes_it() -> None:
    def of(values: Any) -> Any:
        return rebuild_in_graph(lambda: tf.data.Dataset.from_tensor_slices(values).batch(4))[0]

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
    found = _batches(*rebuild_in_graph(make))
    for batch, leaves in zip(expected, found, strict=True):
        assert all(np.array_equal(one, other) for one, other in zip(batch, leaves, strict=True))


def test_arrays_that_do_not_fit_on_the_disk_are_constants(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*args: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("input_analyzer.tf.private_files.replace_file", full)
    values = _values(np.int64) + 7
    graph, _ = rebuild_in_graph(lambda: tf.data.Dataset.from_tensor_slices(values))
    assert graph.as_graph_def().ByteSize() > values.nbytes
