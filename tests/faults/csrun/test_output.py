"""Output under stress: much, fast, unread, unwritable."""

from __future__ import annotations

import hashlib
import os
import pty
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.screens import screen

FLOOD = """
import os, sys
for number in range(200_000):
    sys.stdout.write(f"{number} {'x' * (number % 97)}\\n")
"""
FOREVER = "import os\nwhile True: os.write(1, b'y' * 200 + b'\\n')"


def test_fast_output_of_all_tasks_arrives_whole(start: Any, tmp_path: Path) -> None:
    expected = "".join(f"{number} {'x' * (number % 97)}\n" for number in range(200_000)).encode()
    job = start("--tasks-per-node=3", sys.executable, "-I", "-S", "-c", FLOOD)
    shown = {label: hashlib.sha256() for label in ("chief", "worker 0", "worker 1")}
    for line in job.process.stdout:
        label, _, text = line.partition(" | ")
        shown[label].update(text.encode())
    assert job.end() == 0
    digest = hashlib.sha256(expected).hexdigest()
    assert {label: found.hexdigest() for label, found in shown.items()} == dict.fromkeys(shown, digest)
    for name in ("chief-0.log", "worker-0.log", "worker-1.log"):
        assert (tmp_path / "logs" / name).read_bytes() == expected


def test_a_line_without_end_and_binary_data_arrive(start: Any, tmp_path: Path) -> None:
    write = "import os; os.write(1, b'a' * 300_000); os.write(1, bytes(range(256)) * 100)"
    job = start("--tasks-per-node=1", sys.executable, "-I", "-S", "-c", write)
    shown = job.process.stdout.read()
    assert job.end() == 0
    assert (tmp_path / "logs" / "chief-0.log").read_bytes() == b"a" * 300_000 + bytes(range(256)) * 100
    assert shown.count("a") >= 300_000
    assert all(line.startswith("chief | ") for line in shown.splitlines())


def test_when_nobody_reads_any_more_the_job_continues_in_its_logs(start: Any, tmp_path: Path) -> None:
    job = start(
        "--tasks-per-node=2", "sh", "-c", "echo first; until [ -e go ]; do sleep 0.02; done; seq 1000"
    )
    job.wait_for_lines("chief | first", "worker 0 | first")
    job.process.stdout.close()
    (tmp_path / "go").touch()
    assert job.end() == 0
    for name in ("chief-0.log", "worker-0.log"):
        assert (tmp_path / "logs" / name).read_text().endswith("999\n1000\n")


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM])
def test_a_hanging_reader_does_not_keep_the_job_from_ending(start: Any, signum: int) -> None:
    job = start("--tasks-per-node=2", "--grace-period=5", sys.executable, "-I", "-S", "-c", FOREVER)
    job.process.stdout.readline()  # and no more: pipe and backlog fill up
    log = job.stderr_path.parent / "logs" / "chief-0.log"
    size = -1
    while log.stat().st_size != size or size < 1_000_000:  # until the tasks are stopped by it
        size = log.stat().st_size
        job.process.stdout.readline()
    job.signal(signum)
    assert job.end() == 128 + signum
    assert not job.left()


def test_closed_standard_streams_are_no_problem(start: Any, tmp_path: Path) -> None:
    launcher = Path(__file__).resolve().parents[3] / "bin" / "csrun_wse"
    closed = ("sh", "-c", 'exec "$0" "$@" <&- >&- 2>&-', str(launcher))
    job = start("--tasks-per-node=2", "seq", "3", program=closed)
    assert job.end() == 0
    assert (tmp_path / "logs" / "chief-0.log").read_text() == "1\n2\n3\n"
    assert (tmp_path / "logs" / "worker-0.log").read_text() == "1\n2\n3\n"


def test_a_log_that_cannot_be_written_any_more_costs_the_log_and_not_the_job(
    start: Any, tmp_path: Path
) -> None:
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs" / "worker-0.log").symlink_to("/dev/full")
    job = start("--tasks-per-node=2", "seq", "3")
    job.wait_for_lines("worker 0 | 1", "worker 0 | 3", "chief | 3")
    assert job.end() == 0
    assert job.stderr.count("No space left on device; the job continues without this log") == 1
    assert (tmp_path / "logs" / "chief-0.log").read_text() == "1\n2\n3\n"


def test_a_log_that_is_in_the_way_starts_nothing(start: Any, tmp_path: Path) -> None:
    (tmp_path / "logs" / "worker-0.log").mkdir(parents=True)
    job = start("--tasks-per-node=2", "touch", "started")
    assert job.end() == 1
    assert "worker-0.log: Is a directory; expected a writable file" in job.stderr
    assert not (tmp_path / "started").exists()


def test_progress_displays_show_their_newest_state(start: Any, tmp_path: Path) -> None:
    show = "printf '\\r10%%'; until [ -e go ]; do sleep 0.02; done; printf '\\r20%%'; printf '\\r100%%\\n'"
    job = start("--tasks-per-node=1", "sh", "-c", show)
    job.wait_for_lines("chief | 10%")
    (tmp_path / "go").touch()
    assert job.process.stdout.read() == "chief | 100%\n"
    assert job.end() == 0
    assert (tmp_path / "logs" / "chief-0.log").read_bytes() == b"\r10%\r20%\r100%\n"


PROGRESS = """
import json, os, pathlib, time
log_dir = pathlib.Path(os.environ["CSRUN_LOG_DIR"])
def record(**fields):
    (log_dir / "new").write_text(json.dumps({"first_step": 0, "last_step": 60, "model_dir": "m", **fields}))
    (log_dir / "new").replace(log_dir / "progress.json")
record(step=20, loss=0.5, samples_per_s=400.0, checkpoint_step=15)
while not os.path.exists("seen"):  # the launcher ignores a file that is older than its display
    time.sleep(0.05)
    record(step=20, loss=0.5, samples_per_s=400.0, checkpoint_step=15)
print("a line", flush=True)
"""
LIVE = "step 20/60  loss 0.5  400.0 samples/s  checkpoint 15"


@pytest.mark.parametrize("form", ["live", "log"])
def test_the_launcher_shows_the_progress_below_the_output(form: str, tmp_path: Path) -> None:
    controller, terminal = pty.openpty()
    launcher = Path(__file__).resolve().parents[3] / "bin" / "csrun_wse"
    (tmp_path / "program.py").write_text(PROGRESS)
    if form == "log":
        (tmp_path / "seen").touch()
    program = [sys.executable, "-I", "-S", "program.py"]
    job = subprocess.Popen(
        [launcher, "--log-dir=logs", "--tasks-per-node=1", *program],
        cwd=tmp_path,
        stdout=terminal,
        stderr=terminal,
        env={**os.environ, "TERM": "xterm", "CS_PROGRESS": form},
    )
    os.close(terminal)
    output = ""
    try:
        while data := os.read(controller, 65_536):
            output += data.decode()
            if screen(output, 1000)[-1:] == [LIVE]:
                (tmp_path / "seen").touch()
    except OSError:  # the end of the output of a terminal
        pass
    finally:
        os.close(controller)
        assert job.wait() == 0
    assert (LIVE in output) == (form == "live")
    shown = screen(output, 1000)
    assert shown[1] == "chief | a line"
    assert "the job completed" in shown[2]
