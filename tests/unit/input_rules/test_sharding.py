"""Findings about shards: workers that read the same records, late shards, files among workers."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import tensorflow as tf

from input_rules.findings import Finding
from input_rules.pipeline import StageTime
from input_rules.rules import find
from input_rules.rules.base import Context
from input_rules.tf.inspection import inspect

from .rule_cases import (
    AUTOTUNE,
    RECORDS,
    files,
    finish,
    found,
    good,
    pipeline_of,
    slices,
)


def test_a_shard_is_recommended_after_stages_that_select_by_order() -> None:
    split = found(lambda: finish(slices().take(8)), sharded=False)["shard-missing"].recommended
    assert split.startswith("shard(num_workers, worker_index) after take() in ")
    shuffled = found(lambda: finish(slices().shuffle(9, seed=1).take(8)), sharded=False)["shard-missing"]
    assert "with one seed in all workers for the shuffle before it" in shuffled.recommended


def test_no_shard_is_grave_where_there_are_several_workers() -> None:
    assert found(good, sharded=False)["shard-missing"].severity == "warning"
    grave = found(good, sharded=False, workers=4)["shard-missing"]
    assert grave.severity == "error"
    assert "all 4 workers read the same records" in grave.message
    assert "shard-missing" not in found(good, sharded=None, workers=4)
    assert "shard-missing" not in found(lambda: finish(slices().shard(4, 0)), sharded=False, workers=4)


def test_files_are_counted_for_the_workers() -> None:
    def by_file() -> Any:
        return finish(files().shard(2, 0).interleave(tf.data.TextLineDataset))

    def by_record() -> Any:
        return finish(files().interleave(tf.data.TextLineDataset).shard(2, 0))

    uneven = found(by_file, workers=2)["files-not-divisible"]
    assert "5 files for 2 workers" in uneven.message
    assert "50 % more often than others, as with 2 and 3 files" in str(uneven.gain)
    assert "files-not-divisible" not in found(by_file, workers=5)
    assert "files-not-divisible" not in found(by_record, workers=2)


def test_a_call_may_shuffle_before_a_shard(tmp_path: Path) -> None:
    for name in range(4):
        (tmp_path / f"{name}.txt").write_text("1\n")

    def sharded(**settings: Any) -> Any:
        listed = tf.data.Dataset.list_files(f"{tmp_path}/*.txt", **settings)
        return finish(listed.shard(2, 0).interleave(tf.data.TextLineDataset))

    grave = found(sharded)["shard-after-shuffle"]
    assert "shuffle of list_files() in " in grave.message
    assert grave.recommended.startswith("list_files(..., shuffle=False)")
    # An order that all workers have in common is one to shard.
    assert "shard-after-shuffle" not in found(lambda: sharded(seed=3))
    assert "shard-after-shuffle" not in found(lambda: sharded(shuffle=False))


def test_a_seed_in_common_makes_a_late_shard_wasteful_and_no_more() -> None:
    def late(**settings: Any) -> Finding | None:
        return found(lambda: finish(slices().shuffle(100, **settings).shard(2, 0))).get("shard-after-shuffle")

    unseeded, seeded = late(), late(seed=1)
    assert unseeded is not None
    assert seeded is not None
    assert (unseeded.severity, seeded.severity) == ("error", "warning")
    assert "some records are read by several of them and others by none" in unseeded.message
    assert "others by none" not in seeded.message
    assert "discards most of them" in seeded.message
    assert seeded.gain is not None
    assert seeded.gain.times == 2.0

    def names() -> Any:
        return finish(files().shuffle(5, seed=1).interleave(tf.data.TextLineDataset).shard(2, 0))

    assert "shard-after-shuffle" not in found(names), "a few names are shuffled in no time"


def test_work_before_a_shard_is_done_by_every_worker() -> None:
    def late(make: Callable[[], Any], **context: Any) -> str | None:
        finding = found(lambda: finish(make().shard(2, 0)), **context).get("shard-late")
        return finding and finding.recommended

    def mapped(dataset: Any) -> Any:
        return dataset.map(tf.nn.relu, num_parallel_calls=AUTOTUNE)

    def sampled() -> Any:
        return tf.data.Dataset.sample_from_datasets([slices(), slices()], seed=1)

    assert "before map() in" in str(late(lambda: mapped(slices())))
    assert "before batch() in" in str(late(lambda: mapped(slices().batch(8)).unbatch()))
    assert "of each dataset that sample_from_datasets() in" in str(late(lambda: mapped(sampled())))
    assert "of each dataset that sample" in found(sampled, sharded=False)["shard-missing"].recommended
    # There a shard would leave other records, or have nothing to share out.
    for make in (
        slices,
        lambda: slices().map(lambda x: x),
        lambda: mapped(slices()).filter(lambda x: x[0] < 1),
        lambda: mapped(slices(RECORDS[None])).unbatch(),
    ):
        assert late(make) is None
    pipeline = pipeline_of(lambda: finish(mapped(slices()).shard(2, 0)))
    times = {
        stage.name: StageTime(stage.name, 0.01 if stage.op == "map" else 9.0, 0.0)
        for stage in pipeline.stages
    }
    assert "shard-late" not in {one.id for one in find(pipeline, Context(times=times, cpus=1))}
    (finding,) = (one for one in find(pipeline, Context(workers=3)) if one.id == "shard-late")
    assert finding.gain is not None
    assert (finding.gain.times, finding.gain.at_most) == (3.0, True)


def test_one_record_is_not_shared_out() -> None:
    def synthetic() -> Any:
        return tf.data.Dataset.from_tensors(RECORDS[0]).repeat().batch(8, drop_remainder=True).prefetch(2)

    def cut() -> Any:
        return tf.data.Dataset.from_tensors(RECORDS).unbatch().repeat().batch(8, drop_remainder=True)

    assert "shard-missing" not in {one.id for one in inspect(lambda n, i: synthetic()).findings}
    assert "shard-missing" in {one.id for one in inspect(lambda n, i: cut()).findings}


def test_batches_that_are_selected_by_order_are_sharded_afterwards() -> None:
    """The advice for the one without a shard is what the other one does."""
    bare = inspect(lambda workers, index: slices().batch(8).take(5).prefetch(2))
    (missing,) = (one for one in bare.findings if one.id == "shard-missing")
    assert " after take() in " in missing.recommended
    followed = found(lambda: slices().batch(8).take(5).shard(2, 0).prefetch(2))
    assert not [name for name in followed if name.startswith("shard")]
