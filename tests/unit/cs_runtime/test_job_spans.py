"""Spans of a task, for the timeline of its job."""

from __future__ import annotations

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
                documents[:] = collect(0).values()

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
