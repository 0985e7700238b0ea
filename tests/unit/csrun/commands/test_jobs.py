"""csrun status, logs and cancel on jobs of this machine."""

from __future__ import annotations

import json
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from csrun.commands.jobs import list_text
from csrun.jobs.progress import TrainingProgress, read_progress, time_text
from csrun.jobs.record import new_job_id
from csrun.jobs.registry import KnownJob, find_job, known_jobs, register
from csrun.jobs.state import job_status, status_text
from csrun.schedulers.base import QueueView
from csrun.schedulers.slurm.queue import view_of
from tests.processes import clean_environment

BIN = Path(__file__).resolve().parents[4] / "bin"

Call = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    """One that knows no job."""
    clean = clean_environment()
    return {**clean, "XDG_STATE_HOME": str(tmp_path / "state")}


@pytest.fixture
def csrun(environment: dict[str, str], tmp_path: Path) -> Call:
    """Runs csrun from a directory that is not that of the job."""
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()

    def call(*words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [BIN / "csrun", *words],
            cwd=elsewhere,
            env=environment,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )

    return call


@pytest.fixture
def job(environment: dict[str, str], tmp_path: Path) -> Iterator[tuple[str, subprocess.Popen[bytes]]]:
    """A running job of a chief and a worker, and its launcher."""
    script = 'echo "$CSRUN_ROLE is here"; while true; do sleep 0.05; done'
    launcher = subprocess.Popen(
        [BIN / "csrun_wse", "--log-dir=logs with blanks", "sh", "-c", script],
        cwd=tmp_path,
        env=environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        record = _wait_for(lambda: _running(tmp_path / "logs with blanks"))
        yield record["job_id"], launcher
    finally:
        launcher.send_signal(signal.SIGTERM)
        launcher.wait(30)


def _running(log_dir: Path) -> dict[str, Any] | None:
    try:
        record: dict[str, Any] = json.loads((log_dir / "job.json").read_text())
        written = [(log_dir / task["log"]).stat().st_size for task in record["tasks"]]
    except (OSError, ValueError):
        return None
    return record if all(written) else None


def _wait_for(look: Callable[[], Any]) -> Any:
    deadline_s = time.monotonic() + 30
    while (found := look()) is None:
        assert time.monotonic() < deadline_s
        time.sleep(0.02)
    return found


def test_a_running_job_is_found_from_anywhere_and_cancelled(
    csrun: Call, job: tuple[str, subprocess.Popen[bytes]], tmp_path: Path
) -> None:
    job_id, launcher = job
    shown = csrun("status", job_id[-4:])
    assert "state     running" in shown.stdout
    assert "worker 0" in shown.stdout
    assert job_id in csrun("status").stdout
    assert csrun("logs", job_id, "worker-0").stdout == "worker is here\n"
    both = csrun("logs", job_id, "all").stdout
    assert both.index("==> chief-0.log <==") < both.index("==> worker-0.log <==")

    cancelled = csrun("cancel", job_id)
    assert cancelled.returncode == 0
    assert "cancelled, exit code 143" in cancelled.stderr
    assert launcher.wait(30) == 143
    found = json.loads(csrun("status", "--json", str(tmp_path / "logs with blanks")).stdout)
    assert (found["state"], found["exit_code"]) == ("cancelled", 143)
    assert "has ended already" in csrun("cancel", job_id).stderr


def test_a_followed_log_ends_with_the_job_and_its_exit_code(
    csrun: Call, environment: dict[str, str], tmp_path: Path
) -> None:
    command = [BIN / "csrun_wse", "--log-dir=logs", "--tasks-per-node=1", "sh", "-c", "seq 30; exit 5"]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, check=False)
    assert done.returncode == 5
    followed = csrun("logs", "--follow", "-n", "3", str(tmp_path / "logs"))
    assert followed.stdout == "28\n29\n30\n"
    assert followed.returncode == 5
    assert "failed, exit code 5" in followed.stderr


def test_a_launcher_that_was_killed_leaves_a_lost_job(
    csrun: Call, job: tuple[str, subprocess.Popen[bytes]]
) -> None:
    job_id, launcher = job
    launcher.kill()
    launcher.wait()
    assert "state     lost: its launcher has ended without recording it" in csrun("status", job_id).stdout


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["status", "nope"], "unknown job 'nope'"),
        (["logs", "nope"], "unknown job 'nope'"),
        (["cancel", "nope"], "unknown job 'nope'"),
        (["status", "--last=0"], "--last: got '0'"),
    ],
)
def test_jobs_that_are_not_known_are_refused(csrun: Call, words: list[str], message: str) -> None:
    refused = csrun(*words)
    assert refused.returncode == 2
    assert message in refused.stderr


def test_an_empty_list_of_jobs_is_reported(csrun: Call) -> None:
    assert csrun("status").stdout == "no jobs are known; csrun_wse starts one\n"
    assert json.loads(csrun("status", "--json").stdout) == []


def test_status_has_age_progress_and_time_left() -> None:
    job = KnownJob("local-1", "/logs", "local", ("true",), "", time.time() - 7505)
    progress = TrainingProgress(150, 0, 600, "m", steps_per_s=1.25)
    running = job_status(job, {"started": "then"}, None, True, progress)
    assert "2 h 05 min  150 of 600, 1.25 steps/s  6 min 00 s  true" in list_text([running])
    assert "age       2 h 05 min\n" in status_text(running)
    shown = running.to_json()
    assert shown["age_s"] == pytest.approx(7505, abs=60)
    assert (shown["seconds_left"], shown["training"]["step"]) == (360.0, 150)
    ended = job_status(job, {"started": "then", "ended": "now", "exit_code": 1}, None, False, progress)
    assert "2 h 05 min  150 of 600  -     true" in list_text([ended])
    unknown = job_status(replace(job, created_s=0.0), {"started": "then"}, None, True)
    assert (unknown.to_json()["age_s"], unknown.to_json()["seconds_left"]) == (None, None)
    assert "running  -    -     -     true" in list_text([unknown])


@pytest.mark.parametrize(
    ("seconds", "text"), [(45, "45 s"), (200, "3 min 20 s"), (7500, "2 h 05 min"), (273_600, "3 d 4 h")]
)
def test_times_are_written_in_two_units(seconds: float, text: str) -> None:
    assert time_text(seconds) == text


def test_control_characters_of_a_record_are_escaped() -> None:
    job = KnownJob("local-1", "/logs\x1b]0;title\x07", "local", ("echo", "\x1b[2J\nstate     done"), "", 1)
    found = job_status(job, {"tasks": [{"role": "chief", "host": "\x1b[31mnode"}]}, None, None)
    for text in (status_text(found), list_text([found])):
        assert r"\x1b[2J\x0astate     done" in text
        assert not set(text) & set(map(chr, range(32))) - {"\n"}


def test_unreadable_entries_are_left_out(environment: dict[str, str], tmp_path: Path) -> None:
    for number in (1, 2):
        register(KnownJob(f"local-{number}", str(tmp_path), "local", ("true",), "", number), environment)
    (tmp_path / "state" / "csrun" / "jobs" / "local-3.json").write_text("{")
    assert [job.job_id for job in known_jobs(environment)] == ["local-2", "local-1"]


def test_an_id_of_several_jobs_is_refused(environment: dict[str, str], tmp_path: Path) -> None:
    for name in ("slurm-20261120-101530-1a2b", "slurm-20261120-101531-1a2c"):
        register(KnownJob(name, str(tmp_path / name), "slurm", ("true",), name[-2:]), environment)
    assert find_job("1a2b", environment).job_id.endswith("1a2b")
    assert find_job("2c", environment).job_id.endswith("1a2c")
    with pytest.raises(Exception, match="matches several jobs"):
        find_job("slurm-20261120", environment)


def test_a_number_is_slurms_and_never_the_end_of_an_id(environment: dict[str, str], tmp_path: Path) -> None:
    register(KnownJob("slurm-20261120-101530-1a34", str(tmp_path), "slurm", ("true",), "12"), environment)
    assert find_job("12", environment).job_id.endswith("1a34")
    with pytest.raises(Exception, match="unknown job '34'"):
        find_job("34", environment)


def test_a_job_whose_scheduler_has_gone_is_listed_with_a_word_about_it(
    csrun: Call, environment: dict[str, str], tmp_path: Path
) -> None:
    register(KnownJob("gone-1", str(tmp_path), "gone", ("true",), "5"), environment)
    listed = csrun("status")
    assert listed.returncode == 0
    words = listed.stdout.splitlines()[1].split()
    assert (words[:3], words[-1]) == (["gone-1", "5", "lost"], "true")
    assert "unknown scheduler 'gone'; expected one of: local, slurm" in listed.stderr
    cancelled = csrun("cancel", "5")
    assert cancelled.returncode == 2
    assert "install the package that provides it" in cancelled.stderr


JOB = KnownJob("slurm-1", "/logs", "slurm", ("true",), "12")
ENDED = {"ended": "2026-11-20T16:00:00", "exit_code": 7}


@pytest.mark.parametrize(
    ("record", "view", "state"),
    [
        (None, view_of("PENDING", "", "job 12 waits"), "waiting"),
        ({**ENDED, "exit_code": 75}, view_of("PENDING"), "waiting"),  # requeued
        ({**ENDED, "exit_code": 75}, view_of("COMPLETING"), "running"),  # about to be
        ({}, view_of("RUNNING", "n1"), "running"),
        ({}, view_of("COMPLETING", "n1"), "running"),
        (ENDED, view_of("FAILED"), "failed"),
        (ENDED, None, "failed"),
        ({**ENDED, "exit_code": 0}, view_of("COMPLETED"), "done"),
        ({**ENDED, "exit_code": 143}, view_of("CANCELLED"), "cancelled"),
        ({}, view_of("TIMEOUT"), "failed"),
        ({}, view_of("NODE_FAIL"), "failed"),
        ({}, view_of("CANCELLED"), "cancelled"),
        (None, None, "lost"),
    ],
)
def test_state_of_a_slurm_job(record: dict[str, Any] | None, view: QueueView | None, state: str) -> None:
    found = job_status(JOB, record, view, None)
    assert found.state == state
    assert found.over == (state not in ("waiting", "running"))


def test_the_end_of_a_job_id_is_never_a_number(monkeypatch: pytest.MonkeyPatch) -> None:
    """It would be taken for one of Slurm's."""
    names = iter(["0998", "1234", "1a2b"])
    monkeypatch.setattr("csrun.jobs.record.token_hex", lambda size: next(names))
    assert new_job_id("local").endswith("-1a2b")


def test_the_status_of_a_training_has_the_numbers_of_its_log() -> None:
    progress = TrainingProgress(
        *(4300, 1000, 13500, "/m", 0.125, 80.0, 5120.0, 0.4, 4000, "/m/model.ckpt-4000"),
    )
    running = job_status(JOB, {}, view_of("RUNNING", "n1"), None, progress)
    line = next(line for line in status_text(running).splitlines() if line.startswith("training"))
    assert line == (
        "training  step 4300: loss = 0.125 (80.00 steps/sec, 5120 samples/sec); of 13500, 1 min 55 s left; "
        "checkpoint 4000; input-bound: 40% of the time without a batch"
    )
    assert running.to_json()["training"]["seconds_left"] == 115.0
    ended = job_status(JOB, {}, view_of("TIMEOUT"), None, progress)
    assert "(/m): the same command resumes from there" in status_text(ended)


def test_a_progress_of_another_version_is_read_as_far_as_it_is_known(tmp_path: Path) -> None:
    known = {"step": 5, "first_step": 0, "last_step": None, "model_dir": "m", "to_come": 1}
    (tmp_path / "progress.json").write_text(json.dumps(known))
    found = read_progress(tmp_path)
    assert found is not None
    assert found.line() == "global step 5:"
    (tmp_path / "progress.json").write_text('{"step": 5}')
    assert read_progress(tmp_path) is None
