"""Nothing of an analysis outlives it, whatever ends it: an error, Ctrl-C, a signal, even SIGKILL."""

from __future__ import annotations

import os
import signal
import tempfile
import time
import uuid
from collections.abc import Iterator, Mapping
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
from input_analyzer.measure.node import remove_segments, resource_trackers

MARK = "CSRUN_INPUT_ANALYSIS_ID"
"""In the environment of every process of an analysis, with a value of its own."""

BATCH_SHELL = "SLURM_TASK_PID"
"""In a batch script the process of the script itself."""

_PREFIX = "csia-"
_END_WAIT_S = 5.0
_TIDY_WAIT_S = 3.0


@dataclass(frozen=True, slots=True)
class Workspace:
    """What all processes of an analysis get: variables for the environment, a folder for files."""

    variables: dict[str, str]
    folder: Path


class _SignalledError(BaseException):
    """Not an Exception, so that nothing on the way takes it for a failure of its own."""

    def __init__(self, signum: int) -> None:
        self.signum = signum
        super().__init__(signum)


@contextmanager
def nothing_left(parent: Path) -> Iterator[Workspace]:
    """Yields what every process gets that is started inside; ends all processes below at the end.

    For a command's own process only: whatever runs below it counts. The caller must have no other threads.

    Args:
        parent: where the folder is made.

    Raises:
        CsrunError: SIGINT, SIGTERM or SIGHUP has come; its exit code is 128 and the signal's number.
    """
    adopt_orphans()
    marks = {MARK: uuid.uuid4().hex}
    folder = tempfile.TemporaryDirectory(prefix=_PREFIX, dir=parent, ignore_cleanup_errors=True)
    guard = Guard(marks, Path(folder.name))
    before = {signum: signal.getsignal(signum) for signum in INTERRUPTS}
    for signum in INTERRUPTS:
        if before[signum] is not signal.SIG_IGN:  # a job under nohup survives the hangup
            signal.signal(signum, _leave)
    try:
        _end_with_batch_shell(os.environ)
        yield Workspace(marks, Path(folder.name))
    except _SignalledError as error:
        raise _ended_by(error.signum) from None
    finally:
        _ignore_interrupts()
        _end_all({guard.pid})
        folder.cleanup()
        guard.dismiss()
        for signum, handler in before.items():
            signal.signal(signum, handler)


def _end_with_batch_shell(environment: Mapping[str, str]) -> None:
    """A batch script that is ended takes us with it, while Slurm leaves us the time to tidy up."""
    if environment.get(BATCH_SHELL) == str(os.getppid()):
        signal_on_parent_death(signal.SIGTERM)


def _leave(signum: int, frame: FrameType | None) -> NoReturn:
    _ignore_interrupts()
    raise _SignalledError(signum)


def _ignore_interrupts() -> None:
    """An impatient second one must not disturb the tidying up."""
    for each in INTERRUPTS:
        signal.signal(each, signal.SIG_IGN)


def _ended_by(signum: int) -> CsrunError:
    key = " (Ctrl-C)" if signum == signal.SIGINT else ""
    name = signal.Signals(signum).name
    error = CsrunError(f"ended by {name}{key} before the analysis was complete")
    error.exit_code = 128 + signum
    return error


def _end_all(spared: set[int]) -> None:
    began, killed = time.monotonic(), set[int]()
    while left := descendants(os.getpid()) - spared:
        waited = time.monotonic() - began
        if waited >= _END_WAIT_S:
            break
        # They end by themselves when they have removed what others have left.
        tidying = resource_trackers(left) if waited < _TIDY_WAIT_S else set()
        killed |= left - tidying
        signal_processes(left - tidying, signal.SIGKILL)
        time.sleep(0.01)
        for _ in reap():  # adopted ones are ours to bury
            pass
    remove_segments(killed)
