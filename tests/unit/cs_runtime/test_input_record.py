"""The record of a training run's input, and the check of a run that resumes."""

from __future__ import annotations

import logging
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from cs_runtime import input_record
from cs_runtime.errors import InputChangedError, InputOrderError, ModelDirError
from cs_runtime.input_record import (
    FILE_NAME,
    ORDER_FILE_NAME,
    InputRecord,
    OrderLog,
    append_record,
    read_record,
    schedule_from,
    start_record,
)
from cs_runtime.options import RunSettings
from cs_stream.order import MAX_SHARDS, InputPosition, pack_schedule
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
    monkeypatch.setattr(input_record, "_MAX_BYTES", 2000)
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
    assert resumed.place() == InputPosition(3, 12, "d" * 32)
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


def ready(model_dir: Path, **options: Any) -> RunSettings:
    return settings(model_dir, input_order="first-ready", **options)


def test_first_ready_has_a_cursor_for_each_shard_from_its_start_on(tmp_path: Path) -> None:
    assert start_record(ready(tmp_path), 0, 3, "shards").cursors == (0, 0, 0)
    assert start_record(ready(tmp_path), 0, 3, "global").cursors == (0, 0, 0)
    assert start_record(ready(tmp_path, input_shards=5), 0, 3, "global").cursors == (0,) * 5
    begun = InputRecord(7, 3, 3, "shards", 7)
    append_record(tmp_path, begun)
    assert start_record(ready(tmp_path), 7, 2, "shards").cursors == (3, 2, 2)
    with pytest.raises(InputOrderError, match=r"there are 4 workers and 3 shards; .* use 3 worker\(s\)"):
        start_record(ready(tmp_path), 7, 4, "shards")


def test_a_run_keeps_the_order_first_ready(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    begun = InputRecord(7, 2, 2, "global", 7, cursors=(6, 1))
    append_record(tmp_path, begun)
    assert start_record(settings(tmp_path), 7, 1, "global") == replace(begun, workers=1)
    assert "the run began with the order first-ready, which it keeps" in caplog.text
    assert begun.at(8, InputPosition(2, 8, "d", (6, 2))).place() == InputPosition(2, 8, "d", (6, 2))


def test_the_log_of_the_order_begins_at_the_step_of_the_run_and_is_replayed(tmp_path: Path) -> None:
    begun = start_record(ready(tmp_path), 0, 2, "shards")
    log = OrderLog(tmp_path, begun)
    log.add(pack_schedule([0, 1, 1]))
    log.add(pack_schedule([1]))
    file = tmp_path / ORDER_FILE_NAME
    assert file.read_bytes() == pack_schedule([2, 0, 1, 1, 1])
    OrderLog(tmp_path, replace(begun, step=3)).add(pack_schedule([0]))
    assert file.read_bytes() == pack_schedule([2, 0, 1, 1, 0])
    replaying = settings(tmp_path, input_order=str(file))
    record = start_record(replaying, 0, 1, "shards")
    assert (record.shards, record.cursors) == (2, (0, 0))
    assert schedule_from(replaying, record) == pack_schedule([0, 1, 1, 0])
    assert schedule_from(replaying, replace(record, step=2)) == pack_schedule([1, 0])
    assert schedule_from(ready(tmp_path), record) == b""


def test_a_replayed_order_from_which_the_input_deviates_is_reported_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    begun = start_record(ready(tmp_path), 0, 2, "shards")
    log = OrderLog(tmp_path, begun, pack_schedule([0, 1, 1, 0]))
    log.add(pack_schedule([0, 1]))
    assert not caplog.records
    for _ in range(2):
        log.add(pack_schedule([0, 0]))
    (line,) = caplog.messages
    assert line.startswith("steps 3 to 4 do not have the order that is replayed")
    OrderLog(tmp_path, begun, pack_schedule([0])).add(pack_schedule([0, 1]))  # longer than the schedule
    assert len(caplog.messages) == 1


def test_the_log_has_room_for_the_largest_number_of_shards(tmp_path: Path) -> None:
    begun = start_record(ready(tmp_path, input_shards=MAX_SHARDS), 0, 2, "shards")
    OrderLog(tmp_path, begun).add(pack_schedule([MAX_SHARDS - 1]))
    replaying = settings(tmp_path, input_order=str(tmp_path / ORDER_FILE_NAME))
    assert start_record(replaying, 0, 2, "shards").shards == MAX_SHARDS


def test_an_order_that_is_not_known_from_the_first_step_is_not_replayed(tmp_path: Path) -> None:
    OrderLog(tmp_path, InputRecord(2, 2, 2, "shards", 2, cursors=(1, 1))).add(pack_schedule([0]))
    file = tmp_path / ORDER_FILE_NAME
    with pytest.raises(InputOrderError, match="does not name a shard below 2 for every step"):
        start_record(settings(tmp_path, input_order=str(file)), 0, 2, "shards")


@pytest.mark.parametrize("content", [b"", b"123", None])
def test_a_file_that_is_no_order_is_refused(tmp_path: Path, content: bytes | None) -> None:
    file = tmp_path / "order"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(InputOrderError, match=r"order.*expected"):
        start_record(settings(tmp_path, input_order=str(file)), 0, 2, "shards")


def test_the_order_of_another_number_of_shards_is_refused(tmp_path: Path) -> None:
    append_record(tmp_path, InputRecord(6, 2, 2, "shards", 6))
    append_record(tmp_path, InputRecord(7, 2, 2, "shards", 7, cursors=(6, 1)))
    OrderLog(tmp_path / "other", start_record(ready(tmp_path), 0, 3, "shards"))
    replaying = settings(tmp_path, input_order=str(tmp_path / "other" / ORDER_FILE_NAME))
    for step in (6, 7):
        with pytest.raises(InputOrderError, match="has 3 shards, expected 2 as in this run"):
            start_record(replaying, step, 2, "shards")
    # The batches of a single reader can be dealt to any number of shards.
    assert start_record(replaying, 6, 2, "global").cursors == (2, 2, 2)
