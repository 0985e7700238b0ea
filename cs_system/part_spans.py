"""Spans of the processes of a system on its machine (wafers, MemoryX), in files that the system reads.

Each process maps a file in a directory of the system, which the environment names, and writes its spans there
as records of 32 bytes. So the system can read them at any time, also after the process was killed.
"""

# This needs no message of the protocols between these processes, which are busy with weights during a step.

from __future__ import annotations

import json
import mmap
import os
import shutil
import struct
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import Any, Protocol

from cs_toolkit.files import parse_json
from cs_toolkit.spans import CAPACITY, Detail, SpanRing, span_document

_VARIABLE = "CS_SYSTEM_SPANS_DIR"
_PREFIX = "cs_spans_"
_RECORD = struct.Struct("<ddqHHHxx")  # times, value, and the numbers of track, name and name of the value
_COUNT = struct.Struct("<Q")
# The header in JSON, the number of records so far, the table of names, and the records.
_COUNT_AT, _NAMES_AT, _RECORDS_AT = 1024, 2048, 16_384
_NAME_BYTES = 64
_MAX_NAMES = (_RECORDS_AT - _NAMES_AT) // _NAME_BYTES


class Spans(Protocol):
    """Where a process records its spans."""

    def add(
        self, track: str, name: str, began_s: float, ended_s: float, detail: Detail | None = None
    ) -> None:
        """Add a span; arguments as of `cs_toolkit.spans.SpanRing.add`, with a number in the detail."""
        ...


class MappedSpans:
    """The newest spans of a process, in a mapped file; any thread may add.

    Args:
        path: of the file, which must not exist.
        process: name in the timeline.
        capacity: number of spans that are kept.
    """

    def __init__(self, path: Path, process: str, capacity: int = CAPACITY) -> None:
        header = json.dumps({**span_document(process, SpanRing(0)), "capacity": capacity}).encode()
        with path.open("xb+") as file:
            file.truncate(_RECORDS_AT + capacity * _RECORD.size)
            self._memory = mmap.mmap(file.fileno(), 0)
        self._memory[: len(header)] = header
        self._capacity, self._count = capacity, 0
        self._names: dict[str, int] = {}
        self._known: dict[tuple[str, str, str], tuple[int, ...]] = {}
        self._lock = threading.Lock()
        self._number("")

    def add(
        self, track: str, name: str, began_s: float, ended_s: float, detail: Detail | None = None
    ) -> None:
        """Add a span."""
        label, value = detail or ("", 0)
        with self._lock:
            key = track, name, label
            numbers = self._known.get(key)
            if numbers is None:
                numbers = self._known[key] = tuple(map(self._number, key))
            at = _RECORDS_AT + self._count % self._capacity * _RECORD.size
            _RECORD.pack_into(self._memory, at, began_s, ended_s, value, *numbers)
            self._count += 1
            _COUNT.pack_into(self._memory, _COUNT_AT, self._count)

    def _number(self, name: str) -> int:
        number = self._names.get(name)
        if number is None:
            if len(self._names) == _MAX_NAMES:
                return 0
            number = self._names[name] = len(self._names)
            at = _NAMES_AT + number * _NAME_BYTES
            data = name.encode()[: _NAME_BYTES - 1]
            self._memory[at : at + len(data)] = data
        return number


def read_spans(path: Path, since_s: float, limit: int | None = None) -> dict[str, Any] | None:
    """Return the document of a process (`cs_toolkit.spans`); None if it has no spans since a time.

    Args:
        path: file of a `MappedSpans`.
        since_s: monotonic time; spans that began earlier are left out.
        limit: number of newest spans.

    Raises:
        OSError, ValueError, KeyError, struct.error: the file is not complete.
    """
    data = path.read_bytes()
    document: dict[str, Any] = parse_json(data[:_COUNT_AT].rstrip(b"\0"))
    capacity = document.pop("capacity", None) if isinstance(document, dict) else None
    if not isinstance(capacity, int) or capacity < 1:
        raise ValueError(f"{path}: its header is damaged")
    (count,) = _COUNT.unpack_from(data, _COUNT_AT)
    names = [
        data[at : at + _NAME_BYTES].rstrip(b"\0").decode()
        for at in range(_NAMES_AT, _RECORDS_AT, _NAME_BYTES)
    ]
    spans = []
    for number in range(max(0, count - capacity), count):
        record = _RECORD.unpack_from(data, _RECORDS_AT + number % capacity * _RECORD.size)
        began_s, ended_s, value, track, name, label = record
        if max(track, name, label) >= len(names):
            raise ValueError(f"{path}: a span is damaged")
        if began_s >= since_s:
            detail = (names[label], value) if label else None
            spans.append((names[track], names[name], began_s, ended_s, detail))
    document["truncated"] = count > capacity or (limit is not None and len(spans) > limit)
    document["spans"] = spans if limit is None else spans[-limit:]
    return document if spans else None


def part_spans(process: str) -> Spans:
    """Return where this process, a part of a system, records its spans; nowhere without such a system."""
    return _open_spans(process, os.getpid())


@cache
def _open_spans(process: str, pid: int) -> Spans:
    # The pid is part of the cache's key: a forked child gets its own file.
    folder = os.environ.get(_VARIABLE)
    if folder:
        with suppress(OSError):  # without space a run has no timeline, but is not affected otherwise
            return MappedSpans(Path(folder, f"{process.replace(' ', '-')}.{pid}"), process)
    return SpanRing(0)


@contextmanager
def spans_directory() -> Iterator[None]:
    """Make a directory in which the parts of this system record their spans, for the body."""
    # Containers that share the directory have other process numbers.
    prefix = f"{_PREFIX}{Path('/proc/self/ns/pid').stat().st_ino}_"
    for left in Path(tempfile.gettempdir()).glob(f"{prefix}*"):  # of systems that were killed
        if not _is_alive(left.name.removeprefix(prefix).partition("_")[0]):
            shutil.rmtree(left, ignore_errors=True)
    folder = tempfile.mkdtemp(prefix=f"{prefix}{os.getpid()}_")
    os.environ[_VARIABLE] = folder
    try:
        yield
    finally:
        del os.environ[_VARIABLE]
        shutil.rmtree(folder, ignore_errors=True)


def read_part_spans(since_s: float, limit: int | None = None) -> list[dict[str, Any]]:
    """Return the documents of the parts of this system with spans since a monotonic time."""
    found = []
    for path in _files():
        with suppress(OSError, ValueError, KeyError, struct.error):
            document = read_spans(path, since_s, limit)
            if document is not None:
                found.append(document)
    return found


def remove_ended_parts() -> None:
    """Remove the files of processes that have ended."""
    for path in _files():
        if not _is_alive(path.suffix[1:]):
            path.unlink(missing_ok=True)


def _files() -> list[Path]:
    folder = os.environ.get(_VARIABLE)
    return sorted(Path(folder).iterdir()) if folder else []


def _is_alive(pid: str) -> bool:
    return Path("/proc", pid).exists()
