"""Where a shard and a repeat are recommended: where the mends in the graph put them."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from input_analyzer.analysis import Finding
from input_analyzer.findings import find
from input_analyzer.findings.context import Context
from input_analyzer.tf.graph import trace
from input_analyzer.tf.inspection import inspect
from input_analyzer.tf.mend import mend


def slices() -> Any:
    return tf.data.Dataset.from_tensor_slices(np.zeros((100, 4), np.float32))


def finish(dataset: Any) -> Any:
    return dataset.repeat().batch(8, drop_remainder=True).prefetch(tf.data.AUTOTUNE)


def inspected(make: Callable[[], Any]) -> dict[str, Finding]:
    return {finding.id: finding for finding in inspect(lambda workers, index: make(), eager=True).findings}


def test_a_shard_is_recommended_where_its_mend_puts_it() -> None:
    def shard(make: Callable[[], Any]) -> tuple[str, str]:
        finding = inspected(make)["shard-missing"]
        return finding.op, finding.recommended.removeprefix("shard(num_workers, worker_index) ")

    numbers = tf.data.Dataset.range
    op, place = shard(lambda: finish(numbers(100).filter(lambda x: x % 2 < 1).shuffle(9, seed=1)))
    assert op == "filter"
    assert place.startswith("behind filter() in ")
    op, place = shard(lambda: finish(numbers(100).map(lambda x: x + 1).shuffle(9, seed=1)))
    assert op == "range"
    assert place.startswith("right behind the source, range() in ")
    # A part of the numbers that choose would choose others.
    chosen = lambda: tf.data.Dataset.choose_from_datasets([slices(), slices()], numbers(2).repeat())  # noqa: E731
    assert shard(lambda: finish(chosen()))[0] == "choose_from_datasets"
    assert shard(lambda: finish(tf.data.Dataset.zip((numbers(9), numbers(9)))))[0] == "zip"
    # What numbers batches is no reason to shard them.
    assert shard(lambda: slices().batch(8, drop_remainder=True).enumerate())[0] == "from_tensor_slices"


def test_a_shard_is_recommended_where_written_so_it_is_right(tmp_path: Path) -> None:
    for name in "abc":
        (tmp_path / name).write_text("1\n2\n")

    def shard(make: Callable[[], Any]) -> str:
        return re.sub(r" in [^ ,]+:\d+", "", inspected(make)["shard-missing"].recommended).split(", both")[0]

    def listed(**settings: Any) -> Any:
        names = tf.data.Dataset.list_files(f"{tmp_path}/*", **settings)
        return finish(names.interleave(tf.data.TextLineDataset))

    written = "shard(num_workers, worker_index)"
    # Behind a list that every worker shuffles for itself it would be a part of another order.
    assert shard(listed) == f"list_files(..., shuffle=False), {written} behind list_files(), then shuffle()"
    seeded = f"{written} right behind the source, list_files()"
    assert shard(lambda: listed(seed=3)).startswith(f"{seeded}, with one seed in all workers")
    assert shard(lambda: listed(shuffle=False)) == seeded

    def joined(size: int | None) -> Any:
        parts = (
            [slices(), slices()] if size is None else [slices().batch(size, True), slices().batch(size, True)]
        )
        return tf.data.Dataset.zip(tuple(parts)).map(lambda x, y: x + y)

    assert shard(lambda: finish(joined(None))) == f"{written} behind zip()"
    assert shard(lambda: joined(8)) == f"{written} of each dataset that zip() joins"
    rows = np.zeros((100, 3), np.float32)
    keras = shard(lambda: tf.keras.utils.timeseries_dataset_from_array(rows, None, 10, batch_size=8))
    assert keras.startswith(
        f"{written} right behind the source, timeseries_dataset_from_array() with batch_size="
    )


def test_one_record_is_nothing_to_share_out() -> None:
    def made_up() -> Any:
        return tf.data.Dataset.from_tensors(np.zeros(4, np.float32)).repeat().map(tf.nn.relu)

    assert "shard-missing" not in inspected(lambda: made_up().batch(8, drop_remainder=True))
    # A tensor of many records is a batch, or is taken apart.
    assert "shard-missing" in inspected(made_up)
    apart = lambda: tf.data.Dataset.from_tensors(np.zeros((9, 4), np.float32)).unbatch()  # noqa: E731
    assert "shard-missing" in inspected(lambda: apart().batch(8, drop_remainder=True))


def test_a_repeat_is_recommended_where_its_mend_puts_it() -> None:
    def repeat(make: Callable[[], Any]) -> tuple[str, str, tuple[str, ...]]:
        finding = inspected(make)["repeat-missing"]
        with tf.Graph().as_default():
            mended = mend(make(), {"repeat-missing"})
        place = re.sub(r" in [^ ,]+:\d+", "", finding.recommended).removesuffix(
            ", and the number of steps to train()"
        )
        return finding.op, place, mended.changes

    def ended(dataset: Any) -> Any:
        return dataset.batch(8, drop_remainder=True)

    cases: list[tuple[Callable[[], Any], str, str, str]] = [
        (lambda: ended(slices().shuffle(9, seed=1).take(50)), "batch", "take", ", before batch()"),
        (
            lambda: ended(tf.data.Dataset.zip((slices(), slices()))).prefetch(1),
            "batch",
            "zip",
            ", before batch()",
        ),
        (lambda: ended(slices()).shuffle(9, seed=1).prefetch(1), "shuffle", "shuffle", ""),
        (lambda: ended(slices().batch(4).unbatch()), "batch", "unbatch", ", before batch()"),
        # The first batch makes records: those of an epoch would end in those of the next one.
        (lambda: ended(slices().batch(4).map(tf.nn.relu)), "batch", "map", ", before batch()"),
    ]
    for make, op, behind, before in cases:
        assert repeat(make) == (op, f"repeat() behind {behind}(){before}", (f"repeat() behind {behind}()",))


def test_a_table_is_read_without_end_by_its_own_call(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("a,b\n1,2\n3,4\n")

    def table() -> Any:
        return tf.data.experimental.make_csv_dataset(str(tmp_path / "t.csv"), 1, num_epochs=1, shuffle=False)

    plain = inspected(lambda: table().map(lambda row: row["a"]))["repeat-missing"]
    assert plain.op == "make_csv_dataset"
    assert plain.recommended.startswith("make_csv_dataset(..., num_epochs=None)")
    # A cache of what never ends would only grow, and a part would come from later epochs.
    for behind in (lambda: table().cache(), lambda: table().take(1)):
        assert inspected(behind)["repeat-missing"].recommended.startswith("repeat() behind ")


def test_a_repeat_behind_the_prefetch_goes_with_another_call() -> None:
    def late(behind: Callable[[Any], Any]) -> list[str]:
        make = lambda: behind(slices().batch(8, drop_remainder=True).prefetch(2))  # noqa: E731
        return [f.op for f in find(trace(make).pipeline, Context()) if f.id == "prefetch-not-last"]

    assert late(lambda d: d.repeat()) == ["repeat"]
    assert late(lambda d: d.map(tf.nn.relu).repeat()) == ["map"]


def test_what_the_analyzer_counts_beside_a_dataset_is_no_state_of_it() -> None:
    """The functions of both are in one library, and a table that something writes to would be a state."""
    with tf.Graph().as_default():
        values = tf.lookup.KeyValueTensorInitializer(tf.range(9), tf.range(9) * 2)
        table = tf.lookup.StaticHashTable(values, -1)
        looked_up = tf.data.Dataset.range(9).map(lambda x: table.lookup(tf.cast(x, tf.int32)))
        counts = tf.raw_ops.VarHandleOp(dtype=tf.int64, shape=[1])

        def counted(x: Any) -> Any:
            with tf.control_dependencies([tf.raw_ops.AssignAddVariableOp(resource=counts, value=[x])]):
                return tf.identity(x)

        tf.data.experimental.to_variant(tf.data.Dataset.range(3).map(counted))
        assert mend(looked_up, {"shard-missing"}, 2, 0).changes == ("shard(2, 0) behind range()",)
        written = looked_up.map(lambda x: counted(tf.cast(x, tf.int64)))
        assert mend(written, {"shard-missing"}, 2, 0).changes == ()
