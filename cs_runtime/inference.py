"""Evaluation and prediction on the CS system: forward steps whose outputs return to the chief."""

from __future__ import annotations

import logging
from collections.abc import Callable, Generator
from dataclasses import replace
from typing import Any

import numpy as np

from cs_runtime.options import RunSettings
from cs_runtime.program import FrontEnd, MeasuredFrontEnd, State
from cs_runtime.progress import Timeline
from cs_runtime.session import next_run, open_session, prime
from cs_runtime.tasks import has_input
from cs_runtime.terminal import WaitLog
from cs_runtime.worker import run_in_process_worker, run_worker
from csrun.tasks.roles import TaskInfo

log = logging.getLogger("cs_runtime")

_UNBOUNDED_SEGMENT = 1 << 20


def run(
    front_end: FrontEnd,
    settings: RunSettings,
    steps: int | None,
    on_end: Callable[[State], None] | None = None,
    number: int | None = None,
) -> Generator[dict[str, np.ndarray], None, None]:
    """Yield the outputs of each step in order, on the chief; a worker yields nothing.

    The input is read from its start to its end, or for `steps` steps. Closing the generator early stops
    the run and releases the system.

    Args:
        front_end: Front end of the user's program.
        settings: Options of the run.
        steps: Maximum number of steps; None runs to the end of the input.
        on_end: Called with the state after the last step.
        number: Number of the run, if the caller has already taken one (`cs_runtime.session.next_run`).

    Raises:
        OutOfRangeError: A label is not a class, or an id is not a row of its table.
        cs_system.errors.CsSystemError: The system is unreachable, busy or failed, or a worker was lost.
    """
    task, run_number = replace(TaskInfo.from_environment(), num_workers=1), number or next_run()
    if task.role == "worker":
        if has_input(task):
            run_worker(front_end, settings, task, run_number)
        return
    timeline = Timeline()
    with (
        open_session(front_end, settings, task, run_number, timeline) as session,
        run_in_process_worker(front_end, settings, task, run_number) as check,
    ):
        prime(session, task, timeline, check)
        left = steps
        while left is None or left > 0:
            wanted = left if left is not None else _UNBOUNDED_SEGMENT
            done = 0
            wait_log = WaitLog()
            for span in session.reservation.run_steps(wanted, wait_log):
                wait_log.reset()
                outputs = session.check_outputs(span).outputs
                for index in range(span.count):
                    yield {name: values[index] for name, values in outputs.items()}
                done += span.count
            if done < wanted:
                break
            left = None if left is None else left - done
        if on_end is not None:
            on_end(session.reservation.fetch_state())
        session.reservation.stop(None)


def evaluate(front_end: MeasuredFrontEnd, settings: RunSettings, steps: int) -> dict[str, Any]:
    """Return metrics over `steps` batches, or fewer if the input ends; empty in a worker.

    Raises:
        OutOfRangeError: A label is not a class, or an id is not a row of its table.
        cs_system.errors.CsSystemError: The system is unreachable, busy or failed, or a worker was lost.
    """
    results: dict[str, Any] = {}
    done = 0
    for outputs in run(
        front_end, settings, steps, lambda state: results.update(front_end.metric_values(state))
    ):
        front_end.add_to_metrics(outputs)
        done += 1
    if not results:
        return {}
    log.info("evaluated %d batches", done)
    if done < steps:
        log.warning("the input ended after %d of %d batches", done, steps)
    return results
