"""Spans of a process: the ring, the clock, the files."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

from cs_toolkit.spans import SpanRing, SpanWriter, estimate_offset, span_document
from tests.processes import wait_until


def test_a_ring_keeps_the_newest_spans() -> None:
    ring = SpanRing(3)
    for number in range(5):
        ring.add("track", "work", number, number + 0.5, ("batch", number))
    assert [span[2] for span in ring.newest()] == [2, 3, 4]
    assert [span[2] for span in ring.newest(2)] == [3, 4]
    assert ring.is_full


def test_a_sequence_is_spans_without_the_empty_ones() -> None:
    ring = SpanRing(2)
    ring.add("track", "before", 0.0, 1.0)
    ring.add_sequence("track", ("make", "wait", "send"), (1.0, 2.0, 2.0, 4.0), ("batch", 7))
    assert [span[1] for span in ring.newest()] == ["make", "send"]  # as many spans as the capacity
    wide = SpanRing(10)
    wide.add_sequence("track", ("make", "wait", "send"), (1.0, 2.0, 2.0, 4.0), ("batch", 7))
    assert wide.newest() == [
        ("track", "make", 1.0, 2.0, ("batch", 7)),
        ("track", "send", 2.0, 4.0, ("batch", 7)),
    ]
    assert wide.newest(1) == [("track", "send", 2.0, 4.0, ("batch", 7))]


def test_a_span_is_recorded_although_its_body_raises() -> None:
    ring = SpanRing()
    try:
        with ring.span("track", "work"):
            raise ValueError
    except ValueError:
        pass
    ((track, name, began_s, ended_s, detail),) = ring.newest()
    assert (track, name, detail) == ("track", "work", None)
    assert began_s <= ended_s


def test_a_ring_is_read_while_other_threads_add() -> None:
    ring, stop = SpanRing(1000), threading.Event()

    def add() -> None:
        while not stop.is_set():
            ring.add("track", "work", 0.0, 1.0)

    threads = [threading.Thread(target=add) for _ in range(3)]
    for thread in threads:
        thread.start()
    try:
        for _ in range(300):
            assert all(span[1] == "work" for span in ring.newest())
    finally:
        stop.set()
        for thread in threads:
            thread.join()


def test_the_offset_is_wrong_by_half_of_the_call_at_most() -> None:
    # The system is 100 s ahead and answers 1 ms after the question, which took 4 ms in all.
    sample = estimate_offset(10.0, 10.004, 110.001)
    assert abs(sample.offset_s - 100.0) <= sample.error_s + 1e-9
    assert abs(sample.error_s - 0.002) < 1e-9


def test_documents_are_written_in_intervals_and_at_the_end(tmp_path: Path) -> None:
    ring, limits = SpanRing(), []

    def collect(limit: int | None) -> dict[str, dict[str, Any]]:
        limits.append(limit)
        return {"chief.json": span_document("chief", ring, limit=limit)}

    writer = SpanWriter(collect, tmp_path / "spans")
    file = tmp_path / "spans" / "chief.json"
    wait_until(file.exists)
    ring.add("track", "work", 1.0, 2.0)
    writer.close()
    document = json.loads(file.read_text())
    assert document["spans"] == [["track", "work", 1.0, 2.0, None]]
    assert (limits[0], limits[-1]) == (4000, None)


def test_an_error_of_a_writer_ends_nothing(tmp_path: Path) -> None:
    (tmp_path / "spans").write_text("no directory")
    SpanWriter(lambda limit: {}, tmp_path / "spans").close()
