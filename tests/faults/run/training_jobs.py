"""Starts jobs of several tasks, waits for their log lines, and checks their files."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
from pathlib import Path

import numpy as np

from cs_system.client import SystemClient, parse_address
from tests.processes import wait_until
from tests.systems import RunningSystem

ROOT = Path(__file__).parents[3]
PROGRAM = Path(__file__).with_name("faulty_program.py")
TENSORFLOW_PROGRAM = Path(__file__).with_name("tensorflow_program.py")
TIMEOUT_S = 100.0


def launch(
    system: RunningSystem,
    folder: Path,
    max_steps: int | str,
    tasks: int = 3,
    flags: tuple[str, ...] = (),
    program: Path = PROGRAM,
    before: tuple[str, ...] = (),
    **environment: str,
) -> subprocess.Popen[str]:
    command = [
        str(ROOT / "bin" / "csrun_wse"), "--total-nodes=1", f"--tasks-per-node={tasks}",
        "--cpus-per-task=1", f"--log-dir={folder / 'logs'}", "--grace-period=5", *flags,
        *before, "python", str(program), system.address, str(folder / "model_dir"), str(max_steps),
    ]  # fmt: skip
    return subprocess.Popen(
        command,
        cwd=folder,
        env={**os.environ, "COMPILE_DIR": str(system.log_file.with_name("artifacts")), **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def finish(job: subprocess.Popen[str]) -> tuple[int, str]:
    try:
        output, _ = job.communicate(timeout=TIMEOUT_S)
    finally:
        if job.poll() is None:
            job.send_signal(signal.SIGTERM)
            job.wait(timeout=20)
    return job.returncode, output


def wait_idle(system: RunningSystem) -> None:
    with SystemClient(parse_address(system.address)) as client:
        wait_until(lambda: client.info().state == "IDLE", client.info)


def wait_for_log(folder: Path, pattern: str, job: subprocess.Popen[str]) -> None:
    log = folder / "logs" / "chief-0.log"

    def read() -> str:
        return log.read_text() if log.exists() else "no log"

    def has_logged() -> bool:
        found = bool(re.search(pattern, read(), re.M))
        assert found or job.poll() is None, read()
        return found

    wait_until(has_logged, read, TIMEOUT_S)


def checkpoint(folder: Path) -> dict[str, np.ndarray]:
    with np.load(folder / "model_dir" / "state.npz") as saved:
        return dict(saved)


def pid_of(role: str, folder: Path) -> int:
    """Return the pid of the last task with a role in the job whose logs are in a folder."""
    tasks = json.loads((folder / "logs" / "job.json").read_text())["tasks"]
    return int([task["pid"] for task in tasks if task["role"] == role][-1])


def assert_equal_bit_for_bit(whole: Path, broken: Path, steps: int = 60) -> None:
    expected, got = checkpoint(whole), checkpoint(broken)
    assert expected["state.global_step"] == steps
    for name, value in expected.items():
        assert got[name].tobytes() == value.tobytes(), name
