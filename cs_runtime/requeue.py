"""Interruptions of training runs: checkpoints on request, and records from which a requeued job resumes."""

from __future__ import annotations

import logging
import signal
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any, NoReturn, Self

from cs_runtime import files
from cs_toolkit.files import read_json
from csrun.tasks.place import EXIT_REQUEUE
from csrun.tasks.roles import TaskInfo

# An interruption must not change where training runs end: the job records the last step of each call of
# `train`, in order. After a requeue the program repeats the calls, and each ends at its recorded step.
FILE_NAME = ".train_goals.json"
# A run that started from a checkpoint of another run must not return to it: it resumes from the newest one
# that the job has recorded.
CHECKPOINT_FILE_NAME = ".train_checkpoint.json"

# Number of calls of `train` in this process, by model_dir.
_calls: Counter[Path] = Counter()


def forget_calls() -> None:
    """Count calls of train from 0 again, for another program in this process."""
    _calls.clear()


def last_step_of_job(
    model_dir: Path, task: TaskInfo, first_step: int, steps: int | None, last_step: int | None
) -> int:
    """Return the global step at which this call of train ends.

    Args:
        model_dir: Directory of the run.
        task: This task, which knows whether the job can be requeued.
        first_step: Global step of the checkpoint that the run resumes from.
        steps: Maximum number of further steps; None for no limit.
        last_step: Maximum global step; None for no limit.

    Raises:
        ModelDirError: The record cannot be written.
    """
    ends = [] if last_step is None else [last_step]
    if steps is not None:
        ends.append(first_step + steps)
    end = min(ends)
    if not task.requeue:
        return end
    # Without the record, `train(steps=100)` would train 100 more steps after every start.
    call = _calls[model_dir]
    _calls[model_dir] += 1
    try:
        recorded = [int(step) for step in _read(model_dir / FILE_NAME, task.job_id).get("last_steps", [])]
    except (ValueError, TypeError):
        recorded = []
    if call < len(recorded):
        return recorded[call]
    files.write_json(
        model_dir / FILE_NAME, {"job": task.job_id, "last_steps": [*recorded, end]}, durable=True
    )
    return end


def record_checkpoint(model_dir: Path, task: TaskInfo, checkpoint: Path) -> None:
    """Record the newest checkpoint of a job that can be requeued.

    Raises:
        ModelDirError: The record cannot be written.
    """
    if task.requeue:
        record = {"job": task.job_id, "checkpoint": str(checkpoint)}
        files.write_json(model_dir / CHECKPOINT_FILE_NAME, record, durable=True)


def checkpoint_of_job(model_dir: Path, task: TaskInfo) -> Path | None:
    """Return the newest checkpoint that earlier starts of this job recorded, or None."""
    found = _read(model_dir / CHECKPOINT_FILE_NAME, task.job_id).get("checkpoint")
    return Path(found) if task.requeue and found else None


def _read(path: Path, job_id: str) -> dict[str, Any]:
    """Return the record of a job; empty if the file is missing, damaged or of another job."""
    try:
        record: dict[str, Any] = read_json(path)
        return record if record["job"] == job_id else {}
    except (OSError, ValueError, KeyError, TypeError):
        return {}


# A pause between two calls to the system has no effect, so it is repeated until the request is served.
REPEAT_INTERVAL_S = 0.5

log = logging.getLogger("cs_runtime")


class CheckpointRequests:
    """Handles SIGUSR1 as a request for a checkpoint while entered; by default the signal ends the process.

    Outside of the main thread it does nothing, and `pending` stays false.
    """

    def __init__(self) -> None:
        self._requested = threading.Event()
        self._previous: Callable[[int, FrameType | None], Any] | int | None = None
        self._entered = False

    @property
    def pending(self) -> bool:
        """True if a checkpoint has been requested since the last `clear`."""
        return self._requested.is_set()

    def clear(self) -> None:
        """Forget the request; call it when the checkpoint has been written."""
        self._requested.clear()

    def __enter__(self) -> Self:
        # Only the main thread can handle signals.
        if threading.current_thread() is threading.main_thread():
            self._previous = signal.signal(signal.SIGUSR1, lambda *_: self._requested.set())
            self._entered = True
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._entered:
            # None means that the previous handler was not set from Python, which cannot restore it.
            signal.signal(signal.SIGUSR1, signal.SIG_DFL if self._previous is None else self._previous)
            self._entered = False

    @contextmanager
    def pause_steps_with(self, pause: Callable[[], object]) -> Iterator[None]:
        """During the body, call `pause` from a background thread as long as a request is pending."""
        ended = threading.Event()
        # The signal handler must not call it: it may have interrupted the library that `pause` uses.
        thread = threading.Thread(target=self._pause, args=(pause, ended), name="checkpoints", daemon=True)
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join()

    def _pause(self, pause: Callable[[], object], ended: threading.Event) -> None:
        while not ended.wait(REPEAT_INTERVAL_S):
            if not self._requested.is_set():
                continue
            try:
                pause()
            except Exception as error:  # the main thread gets it too, from the steps
                log.debug("the steps were not paused: %s", error)


def log_requested_checkpoint(step: int) -> None:
    """Log that a requested checkpoint has been written at a global step."""
    log.info("wrote a checkpoint at global step %d, requested by SIGUSR1", step)


def leave_for_requeue(step: int) -> NoReturn:
    """Exit with the code that makes the launcher requeue the job."""
    log.info("leaving at global step %d; the job resumes there when it is started again", step)
    sys.exit(EXIT_REQUEUE)
