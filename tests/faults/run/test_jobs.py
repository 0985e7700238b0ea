"""Jobs of several tasks in which something breaks: the cause is shown, nothing is left, nothing is lost."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import time
from pathlib import Path

import numpy as np
import pytest

from cs_runtime.settings import EXECUTION_VARIABLE
from cs_system.client import SystemClient, parse_address
from cs_system.testing import RunningSystem

ROOT = Path(__file__).parents[3]
PROGRAM = Path(__file__).with_name("faulty_program.py")
TENSORFLOW_PROGRAM = Path(__file__).with_name("tensorflow_program.py")
TIMEOUT_S = 100.0


def launch(
    system: RunningSystem,
    folder: Path,
    max_steps: int,
    tasks: int = 3,
    flags: tuple[str, ...] = (),
    program: Path = PROGRAM,
    **environment: str,
) -> subprocess.Popen[str]:
    command = [
        str(ROOT / "bin" / "csrun_wse"), "--total-nodes=1", f"--tasks-per-node={tasks}",
        "--cpus-per-task=1", f"--log-dir={folder / 'logs'}", "--grace-period=5", *flags,
        "python", str(program), system.address, str(folder / "model_dir"), str(max_steps),
    ]  # fmt: skip
    return subprocess.Popen(
        command,
        cwd=folder,
        env={**os.environ, **environment},
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
        deadline = time.monotonic() + 20
        while client.info().state != "IDLE":
            assert time.monotonic() < deadline, client.info()
            time.sleep(0.05)


def wait_for_log(folder: Path, pattern: str, job: subprocess.Popen[str]) -> None:
    log = folder / "logs" / "chief-0.log"
    deadline = time.monotonic() + TIMEOUT_S
    while not (log.exists() and re.search(pattern, log.read_text(), re.M)):
        assert job.poll() is None, log.read_text() if log.exists() else "no log"
        assert time.monotonic() < deadline, log.read_text()
        time.sleep(0.05)


def checkpoint(folder: Path) -> dict[str, np.ndarray]:
    with np.load(folder / "model_dir" / "state.npz") as saved:
        return dict(saved)


def test_input_of_a_worker_that_raises_ends_the_run_with_its_traceback(
    system: RunningSystem, tmp_path: Path
) -> None:
    job = launch(system, tmp_path, 1000, tasks=2, program=TENSORFLOW_PROGRAM, FAULT="raise")
    code, output = finish(job)
    assert code == 1
    assert "record 160 cannot be parsed" in output
    assert "tensorflow_program.py" in output
    assert "in records" in output
    wait_idle(system)


def test_tasks_that_disagree_on_the_input_say_so_in_every_log(system: RunningSystem, tmp_path: Path) -> None:
    code, output = finish(launch(system, tmp_path, 1000, FAULT="differ"))
    assert code == 1, output
    difference = (
        r"worker 1 on \S+ has another input than the chief: "
        r"tensor 0: input_0 float32\[16, 4\] in the worker, input_0 float32\[8, 4\] in the chief"
    )
    for task in ("chief-0", "worker-0", "worker-1"):
        log = (tmp_path / "logs" / f"{task}.log").read_text()
        assert re.search(difference, log), (task, log)
        assert "Traceback" not in log
    wait_idle(system)


def test_worker_that_is_killed_ends_the_run(system: RunningSystem, tmp_path: Path) -> None:
    code, output = finish(launch(system, tmp_path, 1000, FAULT="die"))
    assert code == 128 + signal.SIGKILL
    assert "worker 1" in output
    wait_idle(system)


def test_killed_job_continues_bit_for_bit(system: RunningSystem, tmp_path: Path) -> None:
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    whole.mkdir()
    broken.mkdir()
    code, output = finish(launch(system, whole, 60))
    assert code == 0, output

    job = launch(system, broken, 1_000_000, FAULT="slow")
    wait_for_log(broken, "saved step 20$", job)
    chief = next(
        task["pid"]
        for task in json.loads((broken / "logs" / "job.json").read_text())["tasks"]
        if task["role"] == "chief"
    )
    os.kill(chief, signal.SIGKILL)
    code, output = finish(job)
    assert code == 128 + signal.SIGKILL, output
    wait_idle(system)
    assert 20 <= checkpoint(broken)["state.global_step"] < 60

    code, output = finish(launch(system, broken, 60))
    assert code == 0, output
    assert_equal_bit_for_bit(whole, broken)


def test_a_job_whose_memoryx_was_killed_continues_bit_for_bit(system: RunningSystem, tmp_path: Path) -> None:
    streamed = {EXECUTION_VARIABLE: "weight_streaming"}
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    whole.mkdir()
    broken.mkdir()
    code, output = finish(launch(system, whole, 60, **streamed))
    assert code == 0, output

    job = launch(system, broken, 1_000_000, FAULT="slow", **streamed)
    wait_for_log(broken, "saved step 20$", job)
    (memoryx,) = children(system.process.pid)
    os.kill(memoryx, signal.SIGKILL)
    killed_s = time.monotonic()
    code, output = finish(job)
    assert code == 1, output
    assert time.monotonic() - killed_s < 10
    assert re.search(r"MemoryX at \S+ has gone .* a training continues from its last checkpoint", output)
    wait_idle(system)
    assert not children(system.process.pid)

    code, output = finish(launch(system, broken, 60, **streamed))
    assert code == 0, output
    assert_equal_bit_for_bit(whole, broken)


def assert_equal_bit_for_bit(whole: Path, broken: Path) -> None:
    expected, got = checkpoint(whole), checkpoint(broken)
    assert expected["state.global_step"] == 60
    for name, value in expected.items():
        assert got[name].tobytes() == value.tobytes(), name


def children(pid: int) -> list[int]:
    tasks = Path(f"/proc/{pid}/task")
    return [int(child) for task in tasks.iterdir() for child in (task / "children").read_text().split()]


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_signal_to_the_launcher_ends_job_and_frees_the_system(
    system: RunningSystem, tmp_path: Path, number: int, code: int
) -> None:
    job = launch(system, tmp_path, 1_000_000, tasks=2, FAULT="slow")
    wait_for_log(tmp_path, "global step 10:", job)
    job.send_signal(number)
    assert finish(job)[0] == code
    wait_idle(system)


def test_a_job_that_waits_runs_when_the_system_is_free(system: RunningSystem, tmp_path: Path) -> None:
    with SystemClient(parse_address(system.address)) as client:
        with client.reserve("job-before", "secret"):
            job = launch(system, tmp_path, 5, tasks=2, flags=("--wait",))
            wait_for_log(tmp_path, "held by job-before since .* place 1 in the queue", job)
        code, output = finish(job)
    assert code == 0, output
    assert "Loss for final step" in output


def test_system_that_dies_is_named(tmp_path: Path) -> None:
    from cs_system.testing import running_system

    server = tmp_path / "server"
    server.mkdir()
    with running_system(server) as doomed:
        job = launch(doomed, tmp_path, 1_000_000, tasks=2, FAULT="slow")
        wait_for_log(tmp_path, "global step 10:", job)
        doomed.process.kill()
        code, output = finish(job)
    assert code == 1
    assert doomed.address in output
    assert "Traceback" not in output
