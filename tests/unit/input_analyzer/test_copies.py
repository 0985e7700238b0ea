"""What is said of processes that show no sign of life, or have ended."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from input_analyzer.errors import MemoryLimitError, ProgramError
from input_analyzer.measure import copies, node
from input_analyzer.measure.copies import START_GRACE_S, Copies, Copy, Launch
from input_analyzer.measure.link import Order


@pytest.fixture
def copy(tmp_path: Path) -> Copy:
    """Of a process that has ended."""
    process = subprocess.Popen(["true"])
    process.wait()
    (tmp_path / "out").touch()
    return Copy(0, process, tmp_path / "out", tmp_path / "stacks", (), 1, "node1", peak_bytes=3 << 30)


def test_to_be_loaded_is_a_sign_of_life_for_some_time_and_only_before_others(copy: Copy) -> None:
    now = time.monotonic()
    copy.heard = now - 30
    assert copy.silent_s() == pytest.approx(30, abs=1)
    copy.worked = now - 2
    assert copy.silent_s() == pytest.approx(2, abs=1), "its imports keep a CPU busy"
    copy.heard = now - START_GRACE_S - 10
    assert copy.silent_s() == pytest.approx(10, abs=1), "but not for ever"
    copy.hears({"event": "alive", "doing": "calling data.py:train_input"})
    assert copy.doing == "calling data.py:train_input"
    copy.heard = now - 30
    assert copy.silent_s() == pytest.approx(30, abs=1), "an input function that computes and computes hangs"


@pytest.mark.parametrize(("before", "after", "for_memory"), [(4, 5, True), (4, 4, False), (None, None, True)])
def test_the_kernel_tells_whether_it_has_killed_for_want_of_memory(
    copy: Copy, monkeypatch: pytest.MonkeyPatch, before: int | None, after: int | None, for_memory: bool
) -> None:
    monkeypatch.setattr(node, "oom_kills", lambda: after)
    error = copies._ended(copy, -signal.SIGKILL, "", copies._for_memory(before))
    assert isinstance(error, MemoryLimitError if for_memory else ProgramError)
    assert error.exit_code == (1 if for_memory else 137)
    assert ("most likely by the kernel for want of memory: it had 3.0 GiB" in str(error)) == for_memory


def test_kills_are_read_from_the_kernel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(node, "_PROC", tmp_path)
    assert node.oom_kills() is None
    (tmp_path / "vmstat").write_text("pgfault 12\noom_kill 3\noom_kill_disable 0\n")
    assert node.oom_kills() == 3


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
