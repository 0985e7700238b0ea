"""Checkpoint requests by SIGUSR1, sent by a scheduler before its time limit or by a user."""

from __future__ import annotations

import logging
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType, TracebackType
from typing import Any, NoReturn, Self

from csrun.tasks.place import EXIT_REQUEUE

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
