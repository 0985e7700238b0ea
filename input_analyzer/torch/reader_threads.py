"""Threads and processes that a dataset starts to read for it."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import wraps
from multiprocessing.process import BaseProcess
from threading import Thread, get_ident
from typing import Any

_STARTS: tuple[tuple[Any, str], ...] = (
    (Thread, "start"),
    (BaseProcess, "start"),
    (subprocess.Popen, "__init__"),
    (os, "fork"),
)


@dataclass
class Helpers:
    """Whether any was started."""

    started: bool = False


@contextmanager
def noticing_helpers() -> Iterator[Helpers]:
    """While it is open, threads and processes are noticed that this thread starts."""
    found, waits = Helpers(), get_ident()
    originals = [(owner, name, getattr(owner, name)) for owner, name in _STARTS]

    def noticed(start: Any) -> Any:
        @wraps(start)
        def noticing(*args: Any, **kwargs: Any) -> Any:
            found.started |= get_ident() == waits
            return start(*args, **kwargs)

        return noticing

    for owner, name, original in originals:
        setattr(owner, name, noticed(original))
    try:
        yield found
    finally:
        for owner, name, original in originals:
            setattr(owner, name, original)
