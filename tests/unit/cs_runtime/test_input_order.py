"""The record of a training run's input, and the check of a run that resumes."""

from __future__ import annotations

import logging
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from cs_runtime import input_order
from cs_runtime.errors import InputChangedError, ModelDirError
from cs_runtime.input_order import FILE_NAME, InputRecord, append_record, read_record, start_record
from cs_runtime.options import RunSettings
from cs_stream.order import InputPosition
from cs_toolkit.execution_options import ExecutionOptions


def settings(model_dir: Path, **options: Any) -> RunSettings:
    return RunSettings("train", model_dir, 8, options=ExecutionOptions(**options))


def record(step: int, workers: int = 2) -> InputRecord:
    return InputRecord(step, workers, workers, "program", step, "d" * 32)


def test_the_newest_record_of_a_step_counts(tmp_path: Path) -> None:
    assert read_record(tmp_path, 10) is None
    for written in (record(0), record(10), record(20), record(10, 3)):
        append_record(tmp_path, written)
    assert read_record(tmp_path, 10) == record(10, 3)
    assert read_record(tmp_path, 20) == record(20)
    assert read_record(tmp_path, 30) is None


@pytest.mark.parametrize("damage", ['{"step": 10, "wor', "[]", '{"step": 10}', "\x00"])
def test_damaged_lines_are_skipped_and_later_keys_ignored(tmp_path: Path, damage: str) -> None:
    append_record(tmp_path, record(10))
    file = tmp_path / FILE_NAME
    file.write_text(file.read_text().replace("}", ', "later": 1}') + damage)
    assert read_record(tmp_path, 10) == record(10)


def test_a_long_record_keeps_its_newer_half(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(input_order, "_MAX_BYTES", 2000)
    for step in range(200):
        append_record(tmp_path, record(step))
    assert (tmp_path / FILE_NAME).stat().st_size <= 2000
    assert read_record(tmp_path, 199) == record(199)
    assert read_record(tmp_path, 195) == record(195)
    assert read_record(tmp_path, 0) is None


def test_a_directory_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ModelDirError, match="cannot write to model_dir"):
        append_record(tmp_path / "file", record(1))


def test_the_same_number_of_workers_resumes_silently(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    append_record(tmp_path, record(10))
    assert start_record(settings(tmp_path), 0, 3, "program") == InputRecord(0, 3, 3, "program", 0)
    assert start_record(settings(tmp_path), 10, 2, "program") == record(10)
    assert not caplog.records


def test_another_number_is_refused_where_the_program_shards(tmp_path: Path) -> None:
    append_record(tmp_path, record(10))
    with pytest.raises(
        InputChangedError, match=r"had 2 worker\(s\), this one has 3; .* that is 3 tasks"
    ) as error:
        start_record(settings(tmp_path), 10, 3, "program")
    assert error.value.exit_code == 2
    assert start_record(settings(tmp_path), 10, 3, "global").shards == 1


@pytest.mark.parametrize("workers", [1, 2, 5])
def test_another_number_keeps_the_shards_where_the_toolkit_deals_them(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, workers: int
) -> None:
    caplog.set_level(logging.INFO)
    before = InputRecord(10, 3, 3, "shards", 12, "d" * 32)
    append_record(tmp_path, before)
    resumed = start_record(settings(tmp_path, input_shards=64), 10, workers, "shards")
    assert resumed == replace(before, workers=workers)
    assert resumed.place == InputPosition(3, 12, "d" * 32)
    assert f"resuming with {workers} worker(s) instead of 3, in the same order over 3 shards" in caplog.text
    assert "input_shards is 64, without effect: the run began with 3 shards" in caplog.text
    assert resumed.at(14, InputPosition(3, 16, "e")) == replace(resumed, step=14, position=16, digest="e")


def test_the_number_of_shards_is_fixed_when_a_run_starts(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    many = settings(tmp_path, input_shards=64)
    assert start_record(settings(tmp_path), 0, 3, "shards").shards == 3
    assert start_record(many, 0, 3, "shards").shards == 64
    assert start_record(many, 0, 70, "shards").shards == 70
    assert start_record(many, 0, 3, "global").shards == 1
    assert not caplog.records
    assert start_record(many, 0, 3, "program").shards == 3
    assert "input_shards is 64, without effect" in caplog.text


def test_another_number_can_be_accepted(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    append_record(tmp_path, record(10))
    assert start_record(settings(tmp_path, allow_input_change=True), 10, 3, "program") == record(10, 3)
    assert "with 3 worker(s) instead of 2" in caplog.text
    assert "samples are repeated and lost" in caplog.text


def test_a_checkpoint_without_a_record_resumes_with_a_line(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    expected = replace(record(10), digest="", digest_from=10)
    assert start_record(settings(tmp_path), 10, 2, "program") == expected
    assert "no record of the input at global step 10" in caplog.text


def test_a_program_that_positions_its_input_is_warned(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    append_record(tmp_path, record(10))
    positions = settings(tmp_path, input_position="program")
    start_record(positions, 0, 3, "program")
    assert not caplog.records
    expected = replace(record(10, 3), digest="", digest_from=10)
    assert start_record(positions, 10, 3, "program") == expected
    assert [line.levelname for line in caplog.records] == ["WARNING"]
    assert "unless input_fn skips what earlier runs have read" in caplog.text
