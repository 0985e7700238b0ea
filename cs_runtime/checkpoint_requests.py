"""Checkpoints that somebody outside asks for, with SIGUSR1: a scheduler before its time limit, or a user."""

from __future__ import annotations

import logging
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType, TracebackType
from typing import Any, NoReturn, Self

from csrun.tasks.roles import EXIT_REQUEUE

REPEAT_INTERVAL_S = 0.5
"""A request that comes between two calls of the system pauses nothing, so it is repeated until served."""

log = logging.getLogger("cs_runtime")


class CheckpointRequests:
    """While entered, SIGUSR1 is a request for a checkpoint instead of the end of the process.

    Only the main thread can take signals; elsewhere this does nothing, and `pending` stays false.
    """

    def __init__(self) -> None:
        self._asked = threading.Event()
        self._previous: Callable[[int, FrameType | None], Any] | int | None = None
        self._entered = False

    @property
    def pending(self) -> bool:
        """Whether a checkpoint was asked for since the last `done`."""
        return self._asked.is_set()

    def done(self) -> None:
        """The checkpoint has been written."""
        self._asked.clear()

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            self._previous = signal.signal(signal.SIGUSR1, self._ask)
            self._entered = True
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._entered:
            # None: the handler was not set from Python, and cannot be set again from it.
            signal.signal(signal.SIGUSR1, signal.SIG_DFL if self._previous is None else self._previous)
            self._entered = False

    @contextmanager
    def served_by(self, pause: Callable[[], object]) -> Iterator[None]:
        """For the body, calls `pause` from a thread of its own while a request waits."""
        ended = threading.Event()
        # Not from the signal's handler: it may have interrupted the very library that `pause` needs.
        thread = threading.Thread(target=self._serve, args=(pause, ended), name="checkpoints", daemon=True)
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join()

    def _ask(self, signum: int, frame: FrameType | None) -> None:
        self._asked.set()

    def _serve(self, pause: Callable[[], object], ended: threading.Event) -> None:
        while not ended.wait(REPEAT_INTERVAL_S):
            if not self._asked.is_set():
                continue
            try:
                pause()
            except Exception as error:  # the steps themselves fail with it, in the main thread
                log.debug("the steps were not paused: %s", error)


def leave_for_requeue(step: int) -> NoReturn:
    """Ends the process so that the launcher puts the job back into the queue."""
    log.info("leaving at global step %d; the job goes on from there when it is started again", step)
    sys.exit(EXIT_REQUEUE)
