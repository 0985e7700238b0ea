from __future__ import annotations

import json
import os
from dataclasses import replace
from datetime import UTC, datetime

import pytest

from cs_system.server.state_directory import StateDirectory, default_state_directory
from cs_system.status import Admission
from cs_system.usage import UsageRecord, UsageSum, merge_sums, record_from_json, sum_usage

HOUR = 3600.0


def at(text: str) -> float:
    return datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp()


NOVEMBER = at("2026-11-01")


def record(
    job: str = "job-1", owner: str = "ada@login1", since: float = 0.0, hours: float = 1.0
) -> UsageRecord:
    first = NOVEMBER + since * HOUR
    return UsageRecord(
        job, owner, first, first + hours * HOUR, 2, 1000, 256_000, "weight_streaming", "ab" * 32, "released"
    )


def test_a_record_is_read_as_it_was_written():
    one = record()
    assert record_from_json(json.loads(json.dumps(one.to_json()))) == one
    assert one.to_json()["wafer_hours"] == 2
    assert one.to_json()["since"] == "2026-11-01T00:00:00.000+00:00"


def test_the_use_is_summed_by_user_whatever_the_host():
    records = [record(), record("job-2", "ada@login2", hours=0.5), record("job-3", "bob@login1", hours=4)]
    assert sum_usage(records, NOVEMBER, NOVEMBER + 100 * HOUR, "user") == [
        UsageSum("bob", "", 1, 8 * HOUR, 1000, 256_000),
        UsageSum("ada", "", 2, 3 * HOUR, 2000, 512_000),
    ]


def test_reservations_of_a_job_that_was_resumed_are_one_row():
    records = [record(), record(since=5)]
    (found,) = sum_usage(records, NOVEMBER, NOVEMBER + 100 * HOUR, "job")
    assert (found.name, found.owner, found.reservations, found.wafer_s) == (
        "job-1",
        "ada@login1",
        2,
        4 * HOUR,
    )


def test_the_part_of_a_reservation_in_the_period_counts():
    # Ten hours, of which two are in the period.
    (found,) = sum_usage([record(since=-8, hours=10)], NOVEMBER, NOVEMBER + 100 * HOUR, "user")
    assert (found.wafer_s, found.steps) == (pytest.approx(4 * HOUR), 200)
    assert sum_usage([record(since=-8, hours=8)], NOVEMBER, NOVEMBER + HOUR, "user") == []
    assert sum_usage([record(since=1)], NOVEMBER, NOVEMBER + HOUR, "user") == []


def test_two_periods_that_meet_count_everything_once():
    records = [record(since=hours, hours=3) for hours in range(-5, 5)]
    periods = ((-9, 0), (0, 9))
    halves = [sum_usage(records, NOVEMBER + a * HOUR, NOVEMBER + b * HOUR, "user") for a, b in periods]
    (whole,) = sum_usage(records, NOVEMBER - 9 * HOUR, NOVEMBER + 9 * HOUR, "user")
    assert sum(one.wafer_s for half in halves for one in half) == pytest.approx(whole.wafer_s)


def test_sums_of_several_systems_are_added():
    one, two = UsageSum("ada", "", 1, 10.0, 5, 50), UsageSum("bob", "", 1, 15.0, 1, 1)
    assert merge_sums([one, two, one]) == [UsageSum("ada", "", 2, 20.0, 10, 100), two]


def test_the_log_has_a_file_for_each_month(tmp_path):
    files = StateDirectory(tmp_path)
    records = [record(since=-30 * 24), record(), record(since=40 * 24)]
    for one in records:
        files.append(one)
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "usage-2026-10.jsonl",
        "usage-2026-11.jsonl",
        "usage-2026-12.jsonl",
    ]
    assert list(files.read_records(0.0)) == records
    assert list(files.read_records(NOVEMBER)) == records[1:]


def test_a_torn_line_costs_only_itself(tmp_path, caplog):
    files = StateDirectory(tmp_path)
    files.append(record("job-1"))
    path = tmp_path / "usage-2026-11.jsonl"
    path.write_bytes(path.read_bytes() + b'{"job":"job-2","own')
    files.append(record("job-3"))
    assert [one.job for one in files.read_records(0.0)] == ["job-1", "job-3"]
    assert "1 damaged line(s) skipped" in caplog.text


def test_the_use_by_a_system_that_was_killed_is_in_the_log_once(tmp_path):
    StateDirectory(tmp_path).write_running(replace(record(), end=""))
    for _ in range(2):
        (found,) = StateDirectory(tmp_path).read_records(0.0)
        assert found == replace(record(), end="the system ended unexpectedly")
    # A system that was killed between the line and the removal of the file.
    StateDirectory(tmp_path).write_running(replace(record(), end=""))
    assert len(list(StateDirectory(tmp_path).read_records(0.0))) == 1


def test_settings_survive_a_restart_and_damage(tmp_path, caplog):
    assert StateDirectory(tmp_path).read_admission() == Admission()
    drained = Admission("ada@host", 12.5, ("pipelined",))
    StateDirectory(tmp_path).write_admission(drained)
    assert StateDirectory(tmp_path).read_admission() == drained
    for damage in ("{", "[]", '{"drained_by": "x"}'):
        (tmp_path / "settings.json").write_text(damage)
        assert StateDirectory(tmp_path).read_admission() == Admission()
    assert "settings.json" in caplog.text


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_directory_that_cannot_be_written_stops_no_job(tmp_path, caplog):
    tmp_path.chmod(0o500)
    StateDirectory(tmp_path).append(record())
    assert "cannot be written" in caplog.text


def test_a_full_disk_stops_no_job(tmp_path, caplog):
    (tmp_path / "usage-2026-11.jsonl").symlink_to("/dev/full")
    StateDirectory(tmp_path).append(record())
    assert "No space left on device" in caplog.text


def test_a_system_on_any_free_port_keeps_nothing(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    assert default_state_directory(0) is None
    found = default_state_directory(9000)
    assert found is not None
    assert found.parent == tmp_path / "cs_system"
    assert found.name.endswith("-9000")
    StateDirectory(None).append(record())
    assert list(StateDirectory(None).read_records(0.0)) == []
