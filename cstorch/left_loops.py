"""Loops that an error of the program has left.

Python closes an iterator that an error leaves as it does behind `break`, before anybody sees the error.
Whether it was one is known when the program ends by it: the error has come through the instruction at which
its frame stood when the loop was closed.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import CodeType, FrameType

from cs_toolkit.source_files import is_users_file

Failed = Callable[[BaseException], None]

_left: list[tuple[CodeType, int, Failed]] = []


def note_left(failed: Failed) -> None:
    """The program leaves a loop here; `failed` is called if it ends by the error that has made it leave."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and not is_users_file(frame.f_code.co_filename):
        frame = frame.f_back
    if frame is not None:
        _left.append((frame.f_code, frame.f_lasti, failed))


def tell(error: BaseException) -> None:
    """The program ends by this error."""
    instructions = set()
    trace = error.__traceback__
    while trace is not None:
        instructions.add((trace.tb_frame.f_code, trace.tb_lasti))
        trace = trace.tb_next
    for code, instruction, failed in _left:
        if (code, instruction) in instructions:
            failed(error)
