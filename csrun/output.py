"""From the bytes that a task writes to the lines that a terminal shows. Pure: bytes and times in, text out.

The log files get the bytes as they are; this is for people who watch several tasks at once, without what
TensorFlow says at its start in every one of them. A text that ends
in a carriage return is a state of a progress display: of those only one in a while is shown.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterator

MAX_LINE_BYTES = 16_384
"""Longer lines are shown in pieces, so that a program that never ends its line costs no memory."""

PROGRESS_INTERVAL_S = 1.0
"""A task's progress display is shown at most this often."""

TAIL_LINES = 20
MAX_TAIL_LINE = 2_000

_COLOURS = ("36", "32", "33", "35", "34", "96", "92", "93", "95", "94")
_RESET = "\x1b[0m"
# What TensorFlow's C++ says at its start about how it was built and what it finds; errors are E and F.
_NOISE = re.compile(
    rb"WARNING: All log messages before absl::InitializeLog\(\) is called are written to STDERR"
    rb"|[IW]0000 00:00:\d+\.\d+ +\d+ [\w/.-]+:\d+\] "
    rb"|\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d+: [IW] (?:tensorflow|external)/"
    rb"|To enable the following instructions: .*, rebuild TensorFlow with the appropriate compiler flags\."
)
# Everything that could move the cursor or change the terminal, except tabs and colours (SGR sequences).
_UNSAFE = re.compile(r"(\x1b\[[0-9;:]*m)|[\x00-\x08\x0a-\x1f\x7f-\x9f]")


class LineSplitter:
    """Cuts a stream of bytes into lines, whatever pieces it arrives in.

    `feed` yields (text, is_line): whole lines without their end, and the progress states between them.
    """

    def __init__(self) -> None:
        self._pending = bytearray()

    @property
    def pending(self) -> bytes:
        """What has come since the last line or state ended."""
        return bytes(self._pending)

    def feed(self, data: bytes) -> Iterator[tuple[bytes, bool]]:
        """Takes the next piece of the stream."""
        self._pending += data
        while (end := self._next_end()) is not None:
            text, length, is_line = end
            del self._pending[:length]
            # "\r" first, as progress displays write it, ends nothing that could be shown.
            if is_line or text:
                yield text, is_line

    def finish(self) -> Iterator[tuple[bytes, bool]]:
        """Takes the end of the stream: what is pending becomes the last line."""
        text = bytes(self._pending).rstrip(b"\r")
        self._pending.clear()
        if text:
            yield text, True

    def _next_end(self) -> tuple[bytes, int, bool] | None:
        """(text, its length with the end, is_line) of what is complete; None where that is nothing."""
        buffer = self._pending
        newline = buffer.find(b"\n", 0, MAX_LINE_BYTES + 1)
        limit = newline if newline >= 0 else min(len(buffer), MAX_LINE_BYTES)
        carriage_return = buffer.find(b"\r", 0, limit)
        if 0 <= carriage_return < limit:
            if carriage_return + 1 == newline:
                return bytes(buffer[:carriage_return]), newline + 1, True
            if carriage_return + 1 < len(buffer):
                return bytes(buffer[:carriage_return]), carriage_return + 1, False
            return None  # "\n" may follow
        if newline >= 0:
            return bytes(buffer[:newline]), newline + 1, True
        if len(buffer) > MAX_LINE_BYTES:
            cut = _character_boundary(buffer, MAX_LINE_BYTES)
            return bytes(buffer[:cut]), cut, True
        return None


def _character_boundary(buffer: bytearray, position: int) -> int:
    """The last position from `position` down that does not cut a UTF-8 character (at most 3 bytes back)."""
    for cut in range(position, position - 4, -1):
        if buffer[cut] & 0xC0 != 0x80:
            return cut
    return position


def printable(line: bytes) -> str:
    """The line as text that leaves a terminal intact: bytes and control characters become escapes.

    Tabs stay, and colours, which are switched off at the end of the line.
    """
    text = line.decode("utf-8", "backslashreplace")
    text = _UNSAFE.sub(lambda found: found[1] or f"\\x{ord(found[0]):02x}", text)
    return text + _RESET if "\x1b" in text else text


def task_prefix(label: str, rank: int, coloured: bool) -> str:
    """What stands before each line of a task, `chief | ` or `worker 0 | `."""
    if not coloured:
        return f"{label} | "
    return f"\x1b[{_COLOURS[rank % len(_COLOURS)]}m{label} |{_RESET} "


class TaskOutput:
    """The output of one task on its way to the terminal.

    Every method returns the text to be shown now, whole lines with the task's prefix, possibly none.
    """

    def __init__(self, prefix: str) -> None:
        self._prefix = prefix
        self._splitter = LineSplitter()
        self._tail: deque[bytes] = deque(maxlen=TAIL_LINES)
        self._state = b""
        self._state_since_s = 0.0
        self._shown_at_s = float("-inf")
        self._shown = b""

    @property
    def tail(self) -> list[str]:
        """The last lines, oldest first, cut to a readable length."""
        lines = [printable(line) for line in self._tail]
        return [
            line if len(line) <= MAX_TAIL_LINE else line[:MAX_TAIL_LINE] + _RESET + " ..." for line in lines
        ]

    def feed(self, data: bytes, now_s: float) -> str:
        """Takes what the task has written; lines come at once, of its progress states the newest waits."""
        shown = self._take(self._splitter.feed(data), now_s)
        pending = self._splitter.pending
        if pending:
            self._wait(pending, now_s)
        return shown + self.tick(now_s)

    def tick(self, now_s: float) -> str:
        """Shows the waiting state, if it has rested or is due.

        The state of a display that changes all the time is shown once in PROGRESS_INTERVAL_S, and so is the
        beginning of a line whose end takes longer than that, such as "compiling ...".
        """
        if not self._state or self._state == self._shown:
            return ""
        if now_s - max(self._state_since_s, self._shown_at_s) < PROGRESS_INTERVAL_S:
            return ""
        self._shown, self._shown_at_s = self._state, now_s
        return self._line(self._state)

    @property
    def waiting(self) -> bool:
        """Whether a later `tick` may show something."""
        return bool(self._state) and self._state != self._shown

    def finish(self, now_s: float) -> str:
        """Takes the end of the output; an unfinished line is shown as one."""
        return self._take(self._splitter.finish(), now_s)

    def _take(self, pieces: Iterator[tuple[bytes, bool]], now_s: float) -> str:
        lines = []
        for text, is_line in pieces:
            if is_line and _NOISE.match(text):
                self._state = self._shown = b""  # it is in the task's log
            elif is_line:
                self._state = self._shown = b""
                self._tail.append(text)
                lines.append(self._line(text))
            else:
                self._wait(text, now_s)
        return "".join(lines)

    def _wait(self, state: bytes, now_s: float) -> None:
        if not self._state:
            self._state_since_s = now_s
        self._state = state

    def _line(self, text: bytes) -> str:
        return f"{self._prefix}{printable(text)}\n"
