"""Clean up after an analysis, whatever ends it: an error, Ctrl-C, a signal, even SIGKILL."""

from __future__ import annotations

import os
import signal
import tempfile
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import NoReturn

from csrun.errors import CsrunError
from csrun.tasks.processes import (
    Guard,
    adopt_orphans,
    descendants,
    reap,
    signal_on_parent_death,
    signal_processes,
)
from csrun.tasks.signals import INTERRUPTS
from input_analyzer.measure.node import find_resource_trackers, remove_torch_segments

# Variable with a unique value in the environment of every process of an analysis.
MARK = "CSRUN_INPUT_ANALYSIS_ID"

# In a Slurm batch script, the process of the script itself.
BATCH_SHELL = "SLURM_TASK_PID"

_PREFIX = "csia-"
_END_WAIT_S = 5.0
_TIDY_WAIT_S = 3.0


@dataclass(frozen=True, slots=True)
class Workspace:
    """Shared by all processes of an analysis: variables for the environment, and a folder for files."""

    variables: dict[str, str]
    folder: Path


class _SignaledError(BaseException):
    """Not an Exception, so that no code on the way handles it as its own failure."""

    def __init__(self, signum: int) -> None:
        self.signum = signum
        super().__init__(signum)


@contextmanager
def analysis_workspace(parent: Path) -> Iterator[Workspace]:
    """Provide a workspace, and kill all descendants of this process at the end.

    Only for a command's own process, as all its descendants are killed. The caller must have no other
    threads.

    Args:
        parent: where the folder is created.

    Raises:
        CsrunError: SIGINT, SIGTERM or SIGHUP was received; its exit code is 128 plus the signal's number.
    """
    adopt_orphans()
    marks = {MARK: uuid.uuid4().hex}
    folder = tempfile.TemporaryDirectory(prefix=_PREFIX, dir=parent, ignore_cleanup_errors=True)
    guard = Guard(marks, Path(folder.name))

    def raise_signaled(signum: int, frame: FrameType | None) -> NoReturn:
        _ignore_interrupts()
        raise _SignaledError(signum)

    before = {signum: signal.getsignal(signum) for signum in INTERRUPTS}
    for signum in INTERRUPTS:
        if before[signum] is not signal.SIG_IGN:  # a job under nohup survives the hangup
            signal.signal(signum, raise_signaled)
    try:
        if os.environ.get(BATCH_SHELL) == str(os.getppid()):
            # Exit when the batch script is killed, while Slurm still gives us time to clean up.
            signal_on_parent_death(signal.SIGTERM)
        yield Workspace(marks, Path(folder.name))
    except _SignaledError as signaled:
        key = " (Ctrl-C)" if signaled.signum == signal.SIGINT else ""
        name = signal.Signals(signaled.signum).name
        error = CsrunError(f"ended by {name}{key} before the analysis was complete")
        error.exit_code = 128 + signaled.signum
        raise error from None
    finally:
        _ignore_interrupts()
        _kill_descendants({guard.pid})
        folder.cleanup()
        guard.dismiss()
        for signum, handler in before.items():
            signal.signal(signum, handler)


def _ignore_interrupts() -> None:
    """Ignore further signals, as a second Ctrl-C must not interrupt the cleanup."""
    for each in INTERRUPTS:
        signal.signal(each, signal.SIG_IGN)


def _kill_descendants(spared: set[int]) -> None:
    began, killed = time.monotonic(), set[int]()
    while left := descendants(os.getpid()) - spared:
        waited = time.monotonic() - began
        if waited >= _END_WAIT_S:
            break
        # Resource trackers exit by themselves after they have removed the resources of other processes.
        tidying = find_resource_trackers(left) if waited < _TIDY_WAIT_S else set()
        killed |= left - tidying
        signal_processes(left - tidying, signal.SIGKILL)
        time.sleep(0.01)
        for _ in reap():  # adopted orphans are ours to reap
            pass
    remove_torch_segments(killed)
