"""Records the activities of a task of a launcher's job, for its timeline (`csrun trace`).

The chief also fetches the spans of the system, which has no access to the directory of the job.
"""

from __future__ import annotations

import logging
import os
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from cs_system.errors import CsSystemError
from cs_toolkit.spans import SPANS, ClockSample, SpanWriter, clock_id, span_document
from csrun.jobs.record import SPANS_DIR
from csrun.tasks.roles import TaskInfo

log = logging.getLogger("cs_runtime")

ReadClock = Callable[[], tuple[str, ClockSample]]
FetchSpans = Callable[[int | None], list[dict[str, Any]]]

# The newest ones: a sample in 10 s for three hours. All of them are in every document.
_clocks: deque[ClockSample] = deque(maxlen=1024)


@contextmanager
def write_spans(
    task: TaskInfo, run: int, read_clock: ReadClock, fetch_system: FetchSpans | None = None
) -> Iterator[None]:
    """Write the spans of this process during the body and at its end, if a launcher has started it.

    Args:
        task: This task.
        run: Number of the run in the program.
        read_clock: Estimates the offset of the system's clock.
        fetch_system: Fetches the spans of the system; for the chief.
    """
    directory = os.environ.get("CSRUN_LOG_DIR")
    if not directory:
        yield
        return
    name = "chief" if task.role == "chief" else f"worker {task.index}"

    def collect(limit: int | None) -> Mapping[str, Mapping[str, Any]]:
        # On the host of the system, all processes have the same clock.
        if not _clocks or _clocks[-1].error_s:
            with suppress(CsSystemError):
                system_clock, sample = read_clock()
                _clocks.append(ClockSample(sample.at_s, 0.0, 0.0) if system_clock == clock_id() else sample)
        clocks = [sample for sample in _clocks if sample.error_s]
        found = {_file_name(name, os.getpid()): span_document(name, SPANS, clocks, limit)}
        try:
            documents = fetch_system(limit) if fetch_system else []
        except CsSystemError as error:  # the files of the last interval remain
            log.debug("the spans of the CS system were not fetched: %s", error)
            documents = []
        for number, document in enumerate(documents):
            # With the process of this chief: a requeued job has another run of the same number.
            found[_file_name(f"system-{os.getpid()}-{run}", number)] = document
        return found

    writer = SpanWriter(collect, Path(directory) / SPANS_DIR)
    try:
        yield
    finally:
        writer.close()


def _file_name(process: str, number: int) -> str:
    return f"{process.replace(' ', '-')}-{number}.json"
