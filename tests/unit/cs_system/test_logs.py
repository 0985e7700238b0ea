from __future__ import annotations

import json
import logging
import os
import re
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from cs_system import logs
from cs_system.commands import serve
from cs_system.logs import LogOptions, name_current_run, set_up_logging
from cs_toolkit import config_file
from tests.processes import wait_until
from tests.systems import running_system

log = logging.getLogger("cs_system.server")


@pytest.fixture(autouse=True)
def _restored() -> Iterator[None]:
    """Give pytest its handlers back."""
    root, current = logging.getLogger(), logs._current
    before, level = root.handlers[:], root.level
    yield
    for handler in root.handlers[:]:
        if handler not in before:
            handler.close()
    root.handlers[:] = before
    root.setLevel(level)
    name_current_run(current)


def lines_of(file: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in file.read_text().splitlines()]


def test_a_line_in_json_has_time_level_job_worker_and_step(tmp_path: Path) -> None:
    file = tmp_path / "system.log"
    set_up_logging(LogOptions("json", "info", file))
    name_current_run(lambda: {"job": "job-7", "step": 120})
    log.info("two\nlines %s", "\ud800")
    log.warning("slow", extra={"worker": 3})
    log.info("waits", extra={"job": "job-8"})
    log.debug("too much")
    first, second, third = lines_of(file)
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", str(first.pop("time")))
    assert first == {
        "level": "INFO",
        "logger": "cs_system.server",
        "message": "two\nlines \ud800",
        "job": "job-7",
        "step": 120,
        "pid": os.getpid(),
    }
    assert (second["level"], second["job"], second["worker"], second["step"]) == ("WARNING", "job-7", 3, 120)
    assert (third["job"], third.get("step")) == ("job-8", None), "the step is that of another job"


def test_an_exception_is_a_field_of_its_line(tmp_path: Path) -> None:
    file = tmp_path / "system.log"
    set_up_logging(LogOptions("json", "info", file))
    try:
        raise ValueError("broken")
    except ValueError:
        log.exception("closing failed")
    (line,) = lines_of(file)
    assert str(line["exception"]).endswith("ValueError: broken")


def test_the_text_names_the_job(tmp_path: Path) -> None:
    file = tmp_path / "system.log"
    set_up_logging(LogOptions("text", "warning", file))
    log.info("hidden")
    log.warning("about nobody")
    log.warning("about one", extra={"job": "job-7"})
    lines = [line.partition("WARNING ")[2] for line in file.read_text().splitlines()]
    assert lines == ["-  about nobody", "job-7  about one"]


def test_a_file_is_rotated_at_its_size(tmp_path: Path) -> None:
    file = tmp_path / "system.log"
    set_up_logging(LogOptions("text", "info", file, 1000, 2))
    for number in range(100):
        log.info("line %d", number)
    names = sorted(path.name for path in tmp_path.iterdir())
    assert names == ["system.log", "system.log.1", "system.log.2"]
    assert all(path.stat().st_size <= 1000 for path in tmp_path.iterdir())
    assert "line 99" in file.read_text()


@pytest.mark.parametrize("change", ["moved", "removed"])
def test_a_file_that_another_program_takes_away_is_begun_again(tmp_path: Path, change: str) -> None:
    file = tmp_path / "system.log"
    set_up_logging(LogOptions("text", "info", file))
    log.info("before")
    if change == "moved":
        file.rename(tmp_path / "system.log.1")
    else:
        file.unlink()
    log.info("after")
    assert "after" in file.read_text()
    assert "before" not in file.read_text()


def test_processes_of_a_system_append_to_its_file(tmp_path: Path) -> None:
    """One of them rotates it while others write."""
    file = tmp_path / "system.log"
    script = (
        "import logging, os; from cs_system.logs import LogOptions, set_up_logging;"
        "set_up_logging(LogOptions.of_parent(os.environ));"
        "[logging.getLogger('cs_system').info('child %d', n) for n in range(200)]"
    )
    environment = {**os.environ, "CS_LOG_FILE": str(file), "CS_LOG_FORMAT": "json"}
    set_up_logging(LogOptions("json", "info", file, 1 << 14, 20))
    children = [subprocess.Popen([sys.executable, "-c", script], env=environment) for _ in range(2)]
    for number in range(400):
        log.info("parent %d", number)
    assert [child.wait(60) for child in children] == [0, 0]
    lines = [line for path in tmp_path.iterdir() for line in lines_of(path)]
    assert sum(str(line["message"]).startswith("parent") for line in lines) == 400
    # A child may write to a file just as it is renamed for the last time.
    assert sum(str(line["message"]).startswith("child") for line in lines) >= 390


def test_a_system_logs_to_its_file(tmp_path: Path) -> None:
    file = tmp_path / "logs.jsonl"
    with running_system(tmp_path, ["--log-format=json", f"--log-file={file}"]) as system:
        wait_until(lambda: "device: cpu" in file.read_text(), system.log)  # the process of the engine
        assert not system.log()
    messages = [str(line["message"]) for line in lines_of(file)]
    assert messages[0].startswith("CS system (fabric cs2")
    assert "stopped" in messages


def test_a_file_that_cannot_be_written_is_refused(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "cs_system", "serve", "--port=0", f"--log-file={tmp_path}/none/log"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr.startswith(
        f"cs_system: error: --log-file={tmp_path}/none/log: cannot be written: No such"
    )


def test_a_system_reports_to_systemd(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as systemd:
        systemd.bind(f"\0cs-system-{os.getpid()}")
        systemd.settimeout(30)
        monkeypatch.setenv("NOTIFY_SOCKET", f"@cs-system-{os.getpid()}")
        with running_system(tmp_path):
            assert systemd.recv(100) == b"READY=1"
        assert systemd.recv(100) == b"STOPPING=1"


def test_the_unit_of_systemd_is_valid_and_its_options_exist(tmp_path: Path) -> None:
    unit = config_file("cs_system.service").read_text()
    command = unit.partition("ExecStart=")[2].partition("\nRestart=")[0].replace("\\\n", " ").split()
    known = {option for parameter in serve.params for option in parameter.opts}
    assert command[:2] == ["/opt/cs-toolkit/bin/cs_system", "serve"]
    assert {word.partition("=")[0] for word in command[2:-1]} <= known
    assert command[-1] == "$CS_SYSTEM_OPTIONS"
    assert "\nOOMPolicy=continue\n" in unit  # else a run that takes all memory ends the system
    program = shutil.which("systemd-analyze")
    if program is None:
        pytest.skip("needs systemd-analyze")
    file = tmp_path / "cs_system.service"
    # The program of the site does not exist here; nor does its user.
    file.write_text(unit.replace("/opt/cs-toolkit/bin/cs_system", sys.executable))
    done = subprocess.run([program, "verify", str(file)], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout + done.stderr) == (0, "")


def test_a_text_cannot_control_a_terminal_or_look_like_a_line(tmp_path: Path) -> None:
    file = tmp_path / "system.log"
    set_up_logging(LogOptions("text", "info", file))
    log.info("a\x1b[2J\r\x9b%s", "\n2026-01-31 12:00:00.123 INFO    -  the system is free")
    first, second = file.read_text().splitlines()
    assert first.endswith(r"INFO    -  a\x1b[2J\x0d\x9b")
    assert second == "    2026-01-31 12:00:00.123 INFO    -  the system is free"
