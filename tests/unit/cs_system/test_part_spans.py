"""Spans of the parts of a system, in files that the system reads."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from cs_system.part_spans import (
    MappedSpans,
    part_spans,
    read_part_spans,
    read_spans,
    remove_ended_parts,
    spans_directory,
)


def test_spans_are_read_as_they_were_written(tmp_path: Path) -> None:
    spans = MappedSpans(tmp_path / "a", "wafer 1", capacity=4)
    for number in range(6):
        spans.add("compute", "compute", number, number + 0.5, ("call", number))
    spans.add("weights", "wait", 6.0, 6.5)
    document = read_spans(tmp_path / "a", since_s=4.0)
    assert document is not None
    assert document["process"] == "wafer 1"
    assert document["pid"] == os.getpid()
    assert document["truncated"]
    assert document["spans"] == [
        ("compute", "compute", 4.0, 4.5, ("call", 4)),
        ("compute", "compute", 5.0, 5.5, ("call", 5)),
        ("weights", "wait", 6.0, 6.5, None),
    ]
    limited = read_spans(tmp_path / "a", 0.0, limit=1)
    assert limited is not None
    assert len(limited["spans"]) == 1
    assert read_spans(tmp_path / "a", since_s=7.0) is None


def test_several_threads_may_add(tmp_path: Path) -> None:
    spans = MappedSpans(tmp_path / "a", "MemoryX", capacity=10_000)

    def add(track: str) -> None:
        for number in range(1000):
            spans.add(track, "work", number, number + 1.0, ("step", number))

    threads = [threading.Thread(target=add, args=(f"track {index}",)) for index in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    document = read_spans(tmp_path / "a", 0.0)
    assert document is not None
    for index in range(4):
        values = [span[4][1] for span in document["spans"] if span[0] == f"track {index}"]
        assert values == list(range(1000))


def test_without_a_system_nothing_is_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CS_SYSTEM_SPANS_DIR", raising=False)
    part_spans("a part of nothing").add("track", "work", 0.0, 1.0)
    assert read_part_spans(0.0) == []


_PART = """
import sys, time
from cs_system.part_spans import part_spans
part_spans("wafer 0").add("compute", "compute", time.monotonic(), time.monotonic(), ("call", 7))
print("ready", flush=True)
time.sleep(100)
"""


def test_the_spans_of_a_killed_part_are_read_until_they_are_removed() -> None:
    began_s = time.monotonic()
    with spans_directory():
        folder = Path(os.environ["CS_SYSTEM_SPANS_DIR"])
        part = subprocess.Popen([sys.executable, "-c", _PART], stdout=subprocess.PIPE, text=True)
        assert part.stdout is not None
        with part.stdout:
            assert part.stdout.readline() == "ready\n"
            part.send_signal(signal.SIGKILL)
            part.wait()
        (document,) = read_part_spans(began_s)
        assert (document["process"], document["pid"]) == ("wafer 0", part.pid)
        assert [span[4] for span in document["spans"]] == [("call", 7)]
        assert read_part_spans(time.monotonic()) == []
        remove_ended_parts()
        assert list(folder.iterdir()) == []
    assert not folder.exists()


def test_a_damaged_file_is_left_out() -> None:
    with spans_directory():
        folder = Path(os.environ["CS_SYSTEM_SPANS_DIR"])
        (folder / f"wafer-0.{os.getpid()}").write_bytes(b"{}")
        (folder / f"wafer-1.{os.getpid()}").write_bytes(bytes(100_000))
        assert read_part_spans(0.0) == []
