"""Whoever waits says after seven seconds, then every ten, for whom and why."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

log = logging.getLogger("cs_runtime")

LINE_EVERY_S = 10.0
FIRST_LINE_S = 7.0
"""The CS system tells every two seconds why it waits: what stands still is named within ten."""


class WaitLog:
    """Logs what it is called with: after seven seconds, then every ten.

    Args:
        at_once: The first sentence is logged at once; else a wait of less than seven seconds is no line.
    """

    def __init__(self, *, at_once: bool = False) -> None:
        self._next_s = 0.0 if at_once else time.monotonic() + FIRST_LINE_S

    def __call__(self, text: str) -> bool:
        """Logs `text` where a line is due; whether it was."""
        due = time.monotonic() >= self._next_s
        if due:
            log.info("%s", text)
            self._next_s = time.monotonic() + LINE_EVERY_S
        return due

    def reset(self) -> None:
        """The wait is over: what comes is another one."""
        self._next_s = time.monotonic() + FIRST_LINE_S


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
