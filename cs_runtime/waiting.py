"""Whoever waits says every ten seconds for whom and why."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

log = logging.getLogger("cs_runtime")

LINE_EVERY_S = 10.0


class WaitLog:
    """Logs what it is called with, at most every ten seconds.

    Args:
        at_once: The first sentence is logged at once; else a wait of less than ten seconds is no line.
    """

    def __init__(self, *, at_once: bool = False) -> None:
        self._next_s = 0.0 if at_once else time.monotonic() + LINE_EVERY_S

    def __call__(self, text: str) -> None:
        """Logs `text` where a line is due."""
        if time.monotonic() >= self._next_s:
            log.info("%s", text)
            self.reset()

    def reset(self) -> None:
        """The wait is over: what comes is another one."""
        self._next_s = time.monotonic() + LINE_EVERY_S


@contextmanager
def announced(what: str, doing: str = "waiting for the CS system to") -> Iterator[None]:
    """Logs `waiting for the CS system to {what}, for N s` every ten seconds of the body, which blocks."""
    ended, began_s = threading.Event(), time.monotonic()

    def tell() -> None:
        while not ended.wait(LINE_EVERY_S):
            log.info("%s %s, for %.0f s", doing, what, time.monotonic() - began_s)

    thread = threading.Thread(target=tell, name="wait-log", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
