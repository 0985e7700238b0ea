"""Jobs with weight streaming in which something breaks: it is named, nothing is left, and nothing is lost."""

from __future__ import annotations

import os
import re
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest

from cs_system.client import SystemClient, parse_address
from cs_toolkit.execution_options import EXECUTION_VARIABLE
from tests.processes import is_running, listening_sockets, wait_until
from tests.systems import RunningSystem, descendants_of, parts_of, running_system
from tests.wall_clock import WallClock

from .training_jobs import (
    assert_equal_bit_for_bit,
    checkpoint,
    finish,
    pid_of,
    wait_for_log,
    wait_idle,
)
from .training_jobs import launch as launch_job

STEPS = 150
launch = partial(launch_job, tasks=2, **{EXECUTION_VARIABLE: "weight_streaming"})


class Streaming(SimpleNamespace):
    """A system of two wafers, and where its MemoryX keeps state.

    Attributes:
        system: RunningSystem.
        memoryx_dir: Path.
        forked: The words before a program.
        listening: The sockets at which it listens while it is idle.
    """


@pytest.fixture(scope="module")
def streaming(forked: tuple[str, ...], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Streaming]:
    memoryx_dir = tmp_path_factory.mktemp("memoryx")
    flags = ["--num-csx=2", f"--memoryx-dir={memoryx_dir}"]
    with running_system(tmp_path_factory.mktemp("group"), flags) as system:
        listening = set(listening_sockets(system.process.pid))
        yield Streaming(system=system, memoryx_dir=memoryx_dir, forked=forked, listening=listening)


@pytest.fixture(scope="module")
def whole(streaming: Streaming, tmp_path_factory: pytest.TempPathFactory) -> Callable[[int], Path]:
    """Return the folder of an undisturbed job on a number of wafers."""
    found: dict[int, Path] = {}

    def folder(num_csx: int) -> Path:
        if num_csx not in found:
            found[num_csx] = tmp_path_factory.mktemp(f"whole-{num_csx}")
            folder, before = found[num_csx], streaming.forked
            job = launch(streaming.system, folder, STEPS, before=before, NUM_CSX=str(num_csx))
            code, output = finish(job)
            assert code == 0, output
        return found[num_csx]

    return folder


def wafer(system: RunningSystem, rank: int) -> int:
    """The process of a wafer."""
    (found,) = (pid for pid, name in parts_of(system.process.pid).items() if name == f"cs_wafer_{rank}")
    return found


def open_files(pid: int) -> Iterator[str]:
    """Yield the names of the files that a process has open."""
    for link in Path(f"/proc/{pid}/fd").iterdir():
        with suppress(FileNotFoundError):  # closed meanwhile
            yield str(link.readlink())


def check_nothing_is_left(streaming: Streaming) -> None:
    """Neither processes nor files nor ports nor the memory of batches."""
    pid = streaming.system.process.pid
    wait_idle(streaming.system)
    assert not parts_of(pid)
    wait_until(lambda: not any("cs_ring" in name for name in open_files(pid)))
    assert not list(streaming.memoryx_dir.iterdir())
    assert set(listening_sockets(pid)) == streaming.listening


def check_continues(streaming: Streaming, whole: Path, broken: Path, num_csx: int) -> None:
    """Check that the job resumes from a checkpoint and ends with the undisturbed job's numbers."""
    assert 20 <= checkpoint(broken)["state.global_step"] < STEPS
    before = streaming.forked
    code, output = finish(launch(streaming.system, broken, STEPS, before=before, NUM_CSX=str(num_csx)))
    assert code == 0, output
    assert_equal_bit_for_bit(whole, broken, STEPS)
    check_nothing_is_left(streaming)


def running(
    streaming: Streaming,
    folder: Path,
    num_csx: int,
    steps: int = 1_000_000,
    flags: tuple[str, ...] = (),
) -> subprocess.Popen[str]:
    """Start a job, and return it once it has written a checkpoint."""
    settings = {"FAULT": "slow", "NUM_CSX": str(num_csx)}
    job = launch(streaming.system, folder, steps, flags=flags, before=streaming.forked, **settings)
    wait_for_log(folder, "saved step 20$", job)
    return job


@pytest.mark.parametrize(
    ("role", "num_csx"),
    [
        ("chief", 2),
        ("worker", 1),
        pytest.param("chief", 1, marks=pytest.mark.soak),
        pytest.param("worker", 2, marks=pytest.mark.soak),
    ],
)
def test_a_job_whose_task_was_killed_continues_bit_for_bit(
    streaming: Streaming, whole: Callable[[int], Path], tmp_path: Path, role: str, num_csx: int
) -> None:
    job = running(streaming, tmp_path, num_csx, flags=("--max-restarts=0",))
    os.kill(pid_of(role, tmp_path), signal.SIGKILL)
    killed_s = time.monotonic()
    code, output = finish(job)
    assert code == 128 + signal.SIGKILL, output
    assert re.search(rf"{role}.*SIGKILL", output), output
    assert time.monotonic() - killed_s < 10
    check_nothing_is_left(streaming)
    check_continues(streaming, whole(num_csx), tmp_path, num_csx)


def test_a_killed_worker_is_restarted_and_no_bit_changes(
    streaming: Streaming, whole: Callable[[int], Path], tmp_path: Path
) -> None:
    code, output = finish(
        launch(streaming.system, tmp_path, STEPS, before=streaming.forked, DEATHS="0:40 1:90")
    )
    assert code == 0, output
    assert "restart 2 of 3 in 2 s" in output
    assert_equal_bit_for_bit(whole(1), tmp_path, STEPS)
    check_nothing_is_left(streaming)


@pytest.mark.parametrize(
    ("num_csx", "victim", "message"),
    [
        (1, "memoryx", r"MemoryX at \S+ has gone .* training resumes from its last checkpoint"),
        (2, "wafer", "CS system 2 of 2 has gone; .* training resumes from its last checkpoint"),
    ],
)
def test_a_job_whose_system_lost_a_process_continues_bit_for_bit(
    streaming: Streaming,
    whole: Callable[[int], Path],
    tmp_path: Path,
    num_csx: int,
    victim: str,
    message: str,
) -> None:
    job = running(streaming, tmp_path, num_csx)
    if victim == "wafer":
        pid = wafer(streaming.system, 1)
    else:
        (pid,) = parts_of(streaming.system.process.pid)
    os.kill(pid, signal.SIGKILL)
    killed_s = time.monotonic()
    code, output = finish(job)
    assert code == 1, output
    assert time.monotonic() - killed_s < 10
    assert re.search(message, output)
    check_nothing_is_left(streaming)
    check_continues(streaming, whole(num_csx), tmp_path, num_csx)


def test_a_killed_system_takes_wafers_and_memoryx_with_it(forked: tuple[str, ...], tmp_path: Path) -> None:
    state, server = tmp_path / "state", tmp_path / "server"
    state.mkdir()
    server.mkdir()
    with running_system(server, ["--num-csx=2", f"--memoryx-dir={state}"]) as system:
        job = launch(system, tmp_path, 1_000_000, before=forked, FAULT="slow", NUM_CSX="2")
        wait_for_log(tmp_path, "saved step 20$", job)
        parts = parts_of(system.process.pid)
        assert len(parts) == 3
        system.process.kill()
        wait_until(lambda: not any(map(is_running, parts)))
        code, output = finish(job)
    assert code == 1, output
    assert system.address in output
    assert not list(state.iterdir())


def test_a_wafer_that_hangs_is_named_and_the_job_continues(
    streaming: Streaming, whole: Callable[[int], Path], tmp_path: Path
) -> None:
    expected = whole(2)
    job = running(streaming, tmp_path, 2, STEPS)
    pid = wafer(streaming.system, 1)
    os.kill(pid, signal.SIGSTOP)
    try:
        with SystemClient(parse_address(streaming.system.address)) as client:
            warning = r"CS system 2 of 2 has not answered for \d+ s; the run ends after 60 s"
            wait_until(
                lambda: (run := client.info().run) and re.fullmatch(warning, run.late), streaming.system.log
            )
        # In the logs of job and system, too.
        wait_for_log(tmp_path, "CS system 2 of 2 has not answered", job)
        wait_until(
            lambda: "CS system 2 of 2 has not answered" in streaming.system.log(), streaming.system.log
        )
    finally:
        os.kill(pid, signal.SIGCONT)
    code, output = finish(job)
    assert code == 0, output
    assert "CS system 2 of 2 answers again" in streaming.system.log()
    assert_equal_bit_for_bit(expected, tmp_path, STEPS)
    check_nothing_is_left(streaming)


@pytest.mark.skipif(WallClock.COMPILER is None, reason="a clock that jumps needs a C compiler")
def test_a_clock_that_is_set_disturbs_no_group(
    streaming: Streaming, whole: Callable[[int], Path], tmp_path: Path
) -> None:
    expected, server = whole(2), tmp_path / "server"
    server.mkdir()
    clock = WallClock(tmp_path)
    with ExitStack() as stack:
        with pytest.MonkeyPatch.context() as patch:
            for name, value in clock.environment().items():
                patch.setenv(name, value)
            system = stack.enter_context(running_system(server, ["--num-csx=2"]))
        job = launch(system, tmp_path, STEPS, before=streaming.forked, FAULT="slow", NUM_CSX="2")
        for step, hours in ((20, 5), (40, -5), (60, 24)):
            wait_for_log(tmp_path, f"saved step {step}$", job)
            clock.jump(3600 * hours)
        code, output = finish(job)
        assert code == 0, output + system.log()
    assert_equal_bit_for_bit(expected, tmp_path, STEPS)


def limit_files(pid: int, limits: tuple[int, int]) -> None:
    """Limit the size of files for a process and those that it starts."""
    for each in (pid, *descendants_of(pid)):
        resource.prlimit(each, resource.RLIMIT_FSIZE, limits)


def test_a_full_disk_under_memoryx_is_told_and_the_job_runs_when_there_is_room(
    forked: tuple[str, ...], tmp_path: Path
) -> None:
    state, server = tmp_path / "state", tmp_path / "server"
    state.mkdir()
    server.mkdir()
    command = [sys.executable, "-m", "cs_system", "memoryx", "serve", "--port=0", f"--memoryx-dir={state}"]
    memoryx = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    try:
        assert memoryx.stderr is not None
        address = re.findall("--memoryx=([^,]+)", memoryx.stderr.readline())[0]
        limits = resource.prlimit(memoryx.pid, resource.RLIMIT_FSIZE)
        with running_system(server, [f"--memoryx={address}"]) as system:
            # No file of MemoryX gets a byte, as on a disk that is full.
            limit_files(memoryx.pid, (0, limits[1]))
            code, output = finish(launch(system, tmp_path, 20, before=forked))
            assert code == 1, output
            wanted = (
                rf"MemoryX needs [\d,]+ bytes in {state}, where [\d,]+ are free; free some, or name another"
            )
            assert re.search(wanted, output)
            assert "Traceback" not in output
            wait_idle(system)
            assert not list(state.iterdir())

            limit_files(memoryx.pid, limits)
            code, output = finish(launch(system, tmp_path, 20, before=forked))
            assert code == 0, output
            wait_idle(system)
    finally:
        memoryx.kill()
        memoryx.wait()
