"""Spans of time in a process, kept in a ring of bounded size, and traces of them: the timeline of a job.

A span has a track, a name and two times of the monotonic clock. Spans of one track are sequential or nested.
`csrun trace` merges the documents of all processes of a job (`csrun.jobs.timeline`) into a trace in the JSON
format that Perfetto and chrome://tracing read.
"""

from __future__ import annotations

import json
import os
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

from cs_toolkit.files import replace_file

# Recording is always on: adding a span took 0.1 us in a loop, reading the clock 0.06 us, and adding a span of
# `cs_system.part_spans` 0.6 us. A batch has one span in the system, and four in the worker, added together.
#   python -m timeit -s 'from cs_toolkit.spans import SPANS' 'SPANS.add("device", "compute", 0.0, 1.0)'

CAPACITY = 30_000
# Spans in the files that are written in intervals, for a process that will be killed: 4,000 cost 15 ms.
KEPT_IF_KILLED = 4_000
FIRST_INTERVAL_S = 2.0
INTERVAL_S = 10.0

_WALL_OFFSET_S = time.time() - time.monotonic()

Detail = tuple[str, int | str]
Span = tuple[str, str, float, float, Detail | None]
_Sequence = tuple[str, Sequence[str], Sequence[float], Detail]


class SpanRing:
    """The newest spans of a process, or of one run of it; any thread may add.

    Args:
        capacity: number of spans that are kept.
    """

    def __init__(self, capacity: int = CAPACITY) -> None:
        self._spans: deque[Span | _Sequence] = deque(maxlen=capacity)

    def add(
        self, track: str, name: str, began_s: float, ended_s: float, detail: Detail | None = None
    ) -> None:
        """Add a span.

        Args:
            track: name of the thread or device, whose spans are sequential or nested.
            name: of the activity.
            began_s: monotonic time of its start.
            ended_s: monotonic time of its end.
            detail: name and value of one property, such as ("step", 12).
        """
        self._spans.append((track, name, began_s, ended_s, detail))

    def add_sequence(
        self, track: str, names: Sequence[str], times_s: Sequence[float], detail: Detail
    ) -> None:
        """Add spans that follow each other, at the cost of one.

        Args:
            track: as of `add`.
            names: of the activities.
            times_s: monotonic times of their starts, and of the end of the last one.
            detail: as of `add`, of all of them.
        """
        self._spans.append((track, names, times_s, detail))

    @contextmanager
    def span(self, track: str, name: str, detail: Detail | None = None) -> Iterator[None]:
        """Add the time of the body, even if it raises."""
        began_s = time.monotonic()
        try:
            yield
        finally:
            self.add(track, name, began_s, time.monotonic(), detail)

    def newest(self, limit: int | None = None) -> list[Span]:
        """Return the newest spans, in the order of their ends."""
        limit = min(limit or CAPACITY, self._spans.maxlen or 0)
        spans: list[Span] = []
        for entry in list(self._spans.copy())[-limit:] if limit else ():  # atomic: other threads may add
            if len(entry) == 5:
                spans.append(entry)
                continue
            track, names, times_s, detail = entry
            for name, (began_s, ended_s) in zip(names, pairwise(times_s), strict=True):
                if ended_s > began_s:
                    spans.append((track, name, began_s, ended_s, detail))
        return spans[-limit:]

    @property
    def is_full(self) -> bool:
        """True if older spans may have been dropped."""
        return len(self._spans) == self._spans.maxlen


# Of this process. The CS system has a separate ring for each run.
SPANS = SpanRing()


@dataclass(frozen=True)
class ClockSample:
    """The system's monotonic clock, as seen from this process.

    Attributes:
        at_s: this process's monotonic time.
        offset_s: add it to a time of this process to get one of the system.
        error_s: the offset is wrong by at most this.
    """

    at_s: float
    offset_s: float
    error_s: float


@cache
def clock_id() -> str:
    """Return a text that all processes have in common whose monotonic clock is the same."""
    # A container may have a time namespace, in which the clock has another origin.
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        return f"{boot} {Path('/proc/self/ns/time').readlink()}"
    except OSError:
        return f"{socket.gethostname()}-{os.getpid()}"


def estimate_offset(asked_s: float, answered_s: float, system_s: float) -> ClockSample:
    """Estimate the offset of the system's clock from one call, as NTP does.

    Args:
        asked_s: time of this process before the call.
        answered_s: time of this process after it.
        system_s: the system's time while it answered.
    """
    # The answer was made at some time between the two; the middle is wrong by at most half of the distance.
    middle_s = (asked_s + answered_s) / 2
    return ClockSample(middle_s, system_s - middle_s, (answered_s - asked_s) / 2)


def span_document(
    process: str, ring: SpanRing, clocks: Sequence[ClockSample] = (), limit: int | None = None
) -> dict[str, Any]:
    """Return the spans of a process as JSON.

    Args:
        process: its name in the timeline.
        ring: its spans.
        clocks: samples of the system's clock; none for the system itself, and for processes with its clock.
        limit: number of spans; None for all.
    """
    spans = ring.newest(limit)
    return {
        "process": process,
        "host": socket.gethostname(),
        "pid": os.getpid(),
        "clock": clock_id(),
        "wall_offset_s": _WALL_OFFSET_S,
        "samples": [asdict(sample) for sample in clocks],
        "truncated": ring.is_full or len(spans) >= (limit or CAPACITY),
        "spans": spans,
    }


class SpanWriter:
    """Writes documents of spans in intervals, so that they exist when this process is killed.

    Args:
        collect: returns the documents by file name; called with the number of spans, None for all.
        folder: where they are written; created if it does not exist. Errors are ignored.
    """

    def __init__(
        self, collect: Callable[[int | None], Mapping[str, Mapping[str, Any]]], folder: Path
    ) -> None:
        self._collect, self._folder = collect, folder
        self._written: dict[str, str] = {}
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._write_in_intervals, name="spans", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Write all spans, and end the thread."""
        self._ended.set()
        self._thread.join()
        self._write(None)

    def _write_in_intervals(self) -> None:
        interval_s = FIRST_INTERVAL_S
        while not self._ended.wait(interval_s):
            self._write(KEPT_IF_KILLED)
            interval_s = min(2 * interval_s, INTERVAL_S)

    def _write(self, limit: int | None) -> None:
        # A run must not fail for its timeline: neither the file system nor the connection to the system is
        # needed for anything else here.
        with suppress(Exception):
            self._folder.mkdir(parents=True, exist_ok=True)
            for name, document in self._collect(limit).items():
                text = json.dumps(document)
                if self._written.get(name) != text:
                    replace_file(self._folder / name, text)
                    self._written[name] = text


# -- traces ---------------------------------------------------------------------------------------------

# Name, start and end in seconds, and values by name.
Slice = tuple[str, float, float, Mapping[str, Any] | None]


def name_process(pid: int, name: str) -> list[dict[str, Any]]:
    """Return the events that name a process, and order it by its number."""
    return [
        _metadata("process_name", pid, 0, name=name),
        _metadata("process_sort_index", pid, 0, sort_index=pid),
    ]


def name_track(pid: int, tid: int, name: str) -> list[dict[str, Any]]:
    """Return the events that name a track of a process, and order it by its number."""
    return [
        _metadata("thread_name", pid, tid, name=name),
        _metadata("thread_sort_index", pid, tid, sort_index=tid),
    ]


def _metadata(kind: str, pid: int, tid: int, **values: str | int) -> dict[str, Any]:
    return {"ph": "M", "name": kind, "ts": 0, "pid": pid, "tid": tid, "args": values}


def make_slices(slices: Iterable[Slice], pid: int, tid: int) -> list[dict[str, Any]]:
    """Return the events of one track, nested: a slice that outlasts the one around it is cut at its end.

    Args:
        slices: in any order.
        pid: number of the process.
        tid: number of the track.
    """
    # In whole nanoseconds: the sum of a rounded start and a rounded duration could exceed the next start.
    whole = [(round(1e9 * began), round(1e9 * ended), name, values) for name, began, ended, values in slices]
    events: list[dict[str, Any]] = []
    open_ends: list[int] = []
    for began, ended, name, values in sorted(whole, key=lambda each: (each[0], -each[1])):
        while open_ends and open_ends[-1] <= began:
            open_ends.pop()
        end = max(began, min(ended, *open_ends[-1:]) if open_ends else ended)
        open_ends.append(end)
        event = {"ph": "X", "name": name, "ts": began / 1000, "dur": (end - began) / 1000}
        events.append({**event, "pid": pid, "tid": tid, **({"args": dict(values)} if values else {})})
    return events
