"""Messages about processes that hang or have ended."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from input_analyzer.errors import MemoryLimitError
from input_analyzer.measure import copies
from input_analyzer.measure.copies import START_GRACE_S, Copies, Copy, Launch
from input_analyzer.measure.link import Order


@pytest.fixture
def copy(tmp_path: Path) -> Copy:
    """Messages about a process that has ended."""
    process = subprocess.Popen(["true"])
    process.wait()
    (tmp_path / "out").touch()
    return Copy(0, process, tmp_path / "out", tmp_path / "stacks", (), 1, "node1", peak_bytes=3 << 30)


def test_to_be_loaded_is_a_sign_of_life_for_some_time_and_only_before_others(copy: Copy) -> None:
    now = time.monotonic()
    copy.last_message_at = now - 30
    assert copy.seconds_silent() == pytest.approx(30, abs=1)
    copy.last_busy_at = now - 2
    assert copy.seconds_silent() == pytest.approx(2, abs=1), "its imports keep a CPU busy"
    copy.last_message_at = now - START_GRACE_S - 10
    assert copy.seconds_silent() == pytest.approx(10, abs=1), "but not forever"
    copy.record_message({"event": "alive", "doing": "calling data.py:train_input"})
    assert copy.doing == "calling data.py:train_input"
    copy.last_message_at = now - 30
    assert copy.seconds_silent() == pytest.approx(30, abs=1), (
        "an input function that computes and computes hangs"
    )


def test_a_killed_process_may_have_lacked_memory(copy: Copy) -> None:
    error = copies._error_of_exit(copy, -signal.SIGKILL, "")
    assert isinstance(error, MemoryLimitError)
    assert error.exit_code == 137
    assert "probably by the kernel because memory ran out: it had 3.0 GiB" in str(error)


_SPAWNS = """
import multiprocessing, time
lock = multiprocessing.get_context("spawn").Lock()
print(lock._semlock.name, flush=True)
time.sleep(60)
"""


def test_semaphores_go_with_the_copies(tmp_path: Path) -> None:
    launch = Launch((sys.executable, "-c", _SPAWNS), dict(os.environ), 20.0, None, "here")
    order = Order(purpose="copy", socket="", stage_seconds=0.0)
    with Copies(launch, [order]) as running:
        (one,) = running.all
        end = time.monotonic() + 20.0
        while not (name := one.output.read_text().strip()) and time.monotonic() < end:
            time.sleep(0.01)
        semaphore = Path("/dev/shm") / f"sem.{name.removeprefix('/')}"
        assert semaphore.exists()
        one.process.kill()
    assert not semaphore.exists()


_SHARES = """
import os, time
from pathlib import Path
segment = Path("/dev/shm") / f"torch_{os.getpid()}_12_0"
segment.touch()
print(segment, flush=True)
time.sleep(60)
"""


def test_shared_memory_of_torch_goes_with_processes_that_are_killed(tmp_path: Path) -> None:
    launch = Launch((sys.executable, "-S", "-c", _SHARES), dict(os.environ), 20.0, None, "here")
    with Copies(launch, [Order(purpose="copy", socket="", stage_seconds=0.0)]) as running:
        (one,) = running.all
        end = time.monotonic() + 20.0
        while not (name := one.output.read_text().strip()) and time.monotonic() < end:
            time.sleep(0.01)
        assert Path(name).exists()
        running._launch.exit_timeout.left_s = 0.0
    assert not Path(name).exists()


_MANAGER = "import os, sys, time; os.read(0, 1); time.sleep(0.3); open(sys.argv[1], 'w')"
_LEAVES_A_MANAGER = """
import os, subprocess, sys
from pathlib import Path
from input_analyzer.measure.cleanup import analysis_workspace

with analysis_workspace(Path(sys.argv[2])):
    reader, writer = os.pipe()
    subprocess.Popen(["sleep", "60"], pass_fds=[writer])
    words = ["torch_shm_manager", "-S", "-c", sys.argv[1], sys.argv[2] + "/tidied"]
    subprocess.Popen(words, executable=sys.executable, stdin=reader, start_new_session=True)
    os.close(writer)
"""


def test_shared_memory_of_torch_may_be_removed_when_its_clients_have_gone(tmp_path: Path) -> None:
    words = (sys.executable, "-c", _LEAVES_A_MANAGER, _MANAGER, str(tmp_path))
    subprocess.run(words, check=True, timeout=60)
    assert [file.name for file in tmp_path.iterdir()] == ["tidied"]


def test_a_copy_is_a_worker_for_slurm_too() -> None:
    """Only there: elsewhere a program that finds such variables would take itself for a task of Slurm."""
    here = {"SLURM_PROCID": "0", "SLURM_CPUS_PER_TASK": "16"}
    copy = copies._task_environment(Order(purpose="copy", socket="", copy_index=1, copies=3), here, 2)
    wanted = {"SLURM_PROCID": "2", "SLURM_LOCALID": "2", "SLURM_NTASKS": "4", "SLURM_CPUS_PER_TASK": "2"}
    assert wanted.items() <= copy.items()
    assert copy["CSRUN_RANK"] == "2"
    alone = copies._task_environment(Order(purpose="examine", socket=""), {**here, "SLURM_NTASKS": "8"}, None)
    assert (alone["SLURM_PROCID"], alone["SLURM_NTASKS"]) == ("0", "1")
    assert copies._task_environment(Order(purpose="compare", socket=""), {}, 2) == {}


_SAYS_A_LAST_WORD = """
import os, sys, time
from pathlib import Path
from input_rules.input_export import ORDER_VARIABLE
from input_analyzer.child import begin
order, link = begin(Path(os.environ[ORDER_VARIABLE]))
while not Path(sys.argv[1]).exists():
    time.sleep(0.01)
link.send(event="examined")
"""


def test_the_last_word_of_a_process_that_has_ended_is_heard(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It came in after the look at the links, and before the look at the processes."""
    told = tmp_path / "told"
    program = (sys.executable, "-c", _SAYS_A_LAST_WORD, str(told))
    order = Order(purpose="examine", socket="", stage_seconds=0.0)
    with Copies(Launch(program, dict(os.environ), 20.0, None, "here"), [order]) as running:
        (one,) = running.all
        while one.link is None:
            assert not [message for _, message in running.messages() if message["event"] == "examined"]

        def meanwhile() -> None:
            told.touch()
            one.process.wait()

        monkeypatch.setattr(running, "_check_memory", meanwhile)
        monkeypatch.setattr(copies, "CHECK_S", 0.0)
        for _, message in running.messages():
            assert message["event"] == "examined"
            one.must_report = False
        assert not one.must_report
