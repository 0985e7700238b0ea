"""A continued input resumes from the saved state of an earlier run, and gives the same batches."""

from __future__ import annotations

from collections.abc import Callable
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import tensorflow as tf

from cs_stream.order import InputOrder
from estimator.config import CSRunConfig
from estimator.input.dataset import InputSource, read
from estimator.input.iterator_state import StateFolder

DATA = tf.data.Dataset
plain = tf.autograph.experimental.do_not_convert


def shuffled(scale: int = 2, buffer: int = 7) -> Any:
    records = DATA.range(40).map(plain(lambda n: n * scale)).shuffle(buffer, seed=1).repeat()
    return records.batch(4, drop_remainder=True).prefetch(2)


def drawn() -> Any:
    records = DATA.range(40).map(plain(lambda n: n + tf.random.uniform([], 0, 9, tf.int64, seed=2)))
    return records.shuffle(7, seed=1).repeat().batch(4, drop_remainder=True)


def source(
    make: Callable[[], Any],
    model_dir: Path,
    shard: int = 0,
    shards: int = 1,
    every_s: float = 0.0,
    steps: int | None = None,
) -> InputSource:
    states = StateFolder(model_dir, shard, shards, steps, every_s)
    return InputSource(make, "train", {}, CSRunConfig(), {}, shards, shard, states=states)


def batches(of: InputSource, skip: int, count: int) -> list[list[int]]:
    return [arrays[0].tolist() for arrays in islice(read(of, 3, skip), count)]


def kept(model_dir: Path) -> list[int]:
    """Positions of the states."""
    paths = (model_dir / "input_state").rglob("*.index")
    return sorted(int(path.stem.rpartition("-")[2]) for path in paths)


@pytest.fixture(autouse=True)
def every_batch(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    caplog.set_level("INFO")
    monkeypatch.setattr("estimator.input.iterator_state.SHARE_OF_TIME", float("inf"))


def test_a_shuffled_input_continues_where_it_was(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    unbroken = batches(source(shuffled, tmp_path), 0, 30)
    assert "saving the state of the input in" in caplog.text
    assert kept(tmp_path) == [27, 28, 29]
    assert batches(source(shuffled, tmp_path, every_s=99.0), 28, 2) == unbroken[28:]
    assert "resuming the input after batch 28 from its saved state\n" in caplog.text
    (state,) = (path for path in (tmp_path / "input_state").rglob("*-28.index"))
    state.unlink()
    assert batches(source(shuffled, tmp_path, every_s=99.0), 28, 2) == unbroken[28:]
    assert "resuming the input after batch 27 from its saved state; 1 more to read" in caplog.text
    assert kept(tmp_path) == [27], "what lies ahead of a continued run is not of it"


@pytest.mark.parametrize(
    "other", [lambda: shuffled(scale=3), lambda: shuffled(buffer=8), lambda: shuffled().skip(1)]
)
def test_a_state_is_of_one_program(other: Callable[[], Any], tmp_path: Path) -> None:
    batches(source(shuffled, tmp_path), 0, 8)
    changed = source(other, tmp_path)
    assert batches(changed, 6, 2) == batches(source(other, tmp_path / "none"), 6, 2)


def test_a_damaged_state_is_dropped(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    unbroken = batches(source(shuffled, tmp_path), 0, 8)
    for path in (tmp_path / "input_state").rglob("*.data*"):
        path.write_bytes(b"")
    assert batches(source(shuffled, tmp_path, every_s=99.0), 7, 1) == unbroken[7:]
    assert "cannot restore a saved state of the input" in caplog.text
    assert "because of a repetition of shuffle" in caplog.text
    assert kept(tmp_path) == []


def test_random_numbers_have_no_state_that_could_be_kept(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    unbroken = batches(source(drawn, tmp_path), 0, 8)
    assert "TensorFlow cannot save its state (RandomUniformInt is stateful)" in caplog.text
    assert kept(tmp_path) == []
    assert batches(source(drawn, tmp_path), 5, 3) == unbroken[5:]


def test_positions_that_arithmetic_reaches_keep_no_state(tmp_path: Path) -> None:
    batches(source(lambda: DATA.range(40).repeat().batch(4, drop_remainder=True), tmp_path), 0, 4)
    assert not (tmp_path / "input_state").exists()


def test_a_state_from_before_the_newest_checkpoint_stays(tmp_path: Path) -> None:
    for ending in ("index", "data-00000-of-00001"):
        (tmp_path / f"model.ckpt-11.{ending}").touch()  # 5 batches of worker 1 of 2
    batches(source(shuffled, tmp_path, 1, 2), 0, 20)
    assert kept(tmp_path) == [5, 17, 18, 19]
    batches(source(shuffled, tmp_path, 0, 3), 0, 2)
    assert kept(tmp_path) == [1], "another number of workers leaves nothing of the former"


def test_a_large_input_is_not_kept(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("estimator.input.iterator_state.LARGEST_BYTES", -(1 << 40))
    batches(source(shuffled, tmp_path), 0, 4)
    assert "more than the limit of" in caplog.text
    assert kept(tmp_path) == []


@pytest.mark.parametrize("shard", [0, 1, 2])
def test_states_are_of_the_steps_of_checkpoints(shard: int, tmp_path: Path) -> None:
    folder = StateFolder(tmp_path, shard, 3, 10)
    wanted = [InputOrder(3, 3).count_before(shard, step) for step in (10, 20, 30)]
    assert [batches for batches in range(12) if folder.is_checkpoint_due(batches)] == wanted
