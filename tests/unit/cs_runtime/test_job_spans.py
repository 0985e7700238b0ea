"""Spans of a task, for the timeline of its job."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from cs_runtime import job_spans
from cs_toolkit.spans import ClockSample
from csrun.tasks.roles import TaskInfo

INTERVALS = 2000


def test_a_long_run_keeps_a_bounded_number_of_clock_samples(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    documents: list[Mapping[str, Any]] = []

    class Writer:
        def __init__(self, collect: Callable[[int | None], Mapping[str, Mapping[str, Any]]], _: Path) -> None:
            for _ in range(INTERVALS):
                documents[:] = collect(1).values()

        def close(self) -> None:
            pass

    monkeypatch.setenv("CSRUN_LOG_DIR", str(tmp_path))
    monkeypatch.setattr(job_spans, "SpanWriter", Writer)
    monkeypatch.setattr(job_spans, "_clocks", deque(maxlen=job_spans._clocks.maxlen))
    times = iter(range(INTERVALS))
    task = TaskInfo.from_environment({})
    with job_spans.write_spans(task, 0, lambda: ("another host", ClockSample(next(times), 5.0, 0.001))):
        pass
    (document,) = documents
    assert document["samples"][-1]["at_s"] == INTERVALS - 1
    assert len(document["samples"]) < INTERVALS


def test_the_spans_of_the_system_are_kept_for_each_start_of_a_requeued_job(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("CSRUN_LOG_DIR", str(tmp_path))
    monkeypatch.setattr(job_spans, "_clocks", deque())
    task = TaskInfo.from_environment({})
    for pid in (100, 101):
        monkeypatch.setattr(job_spans.os, "getpid", lambda pid=pid: pid)
        with job_spans.write_spans(
            task, 1, lambda: ("host", ClockSample(0.0, 0.0, 0.0)), lambda _, pid=pid: [{"of": pid}]
        ):
            pass
    found = {json.loads(file.read_text())["of"] for file in tmp_path.glob("spans/system-*.json")}
    assert found == {100, 101}
