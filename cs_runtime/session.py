"""The chief's session with the CS system: compile, reserve, program, load the state and open the input."""

from __future__ import annotations

import contextlib
import logging
import os
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING

from cs_runtime.errors import NoSystemError
from cs_runtime.exits import record_failures
from cs_runtime.input_record import InputRecord, schedule_from, start_record
from cs_runtime.job_spans import write_spans
from cs_runtime.options import RunSettings
from cs_runtime.program import FrontEnd, State, StepCheck, StepProgram, check_steps
from cs_runtime.progress import Timeline
from cs_runtime.terminal import WaitLog, log_while_blocked
from cs_system.address import parse_addresses
from cs_system.client import Reservation, StepOutputs
from cs_system.client.pool import Requirements, SystemPool
from cs_system.errors import WorkerLostError
from cs_system.messages import InputIdentity
from cs_toolkit.step import GLOBAL_STEP
from csrun.jobs.record import read_finished_workers
from csrun.tasks.roles import TaskInfo

if TYPE_CHECKING:
    from cgc.driver import CompileResult
    from cs_runtime.compile import Target

log = logging.getLogger("cs_runtime")

# As long as the system waits for any other batch (`cs_system serve --input-patience-s`): the first one of a
# resumed run may need a long read of the input, and a node of a worker may boot late.
PRIME_TIMEOUT_S = 1800.0

_runs = count(1)


def next_run() -> int:
    """Return the number of the next run of this process."""
    # It identifies a run in all tasks of a job, because they make the same calls in the same order.
    return next(_runs)


@dataclass
class Session:
    """A CS system that is programmed and loaded, ready for the first step.

    Attributes:
        input_record: The input after the steps whose outputs have arrived.
        metrics: Names of the outputs that progress lines show next to the loss.
    """

    reservation: Reservation
    compiled: CompileResult
    target: Target
    first_step: int
    initial_state: State
    checks: tuple[StepCheck, ...]
    every: Mapping[str, int]
    input_record: InputRecord
    metrics: tuple[str, ...] = ()

    def check_outputs(self, span: StepOutputs) -> StepOutputs:
        """Check consecutive steps, and return the outputs of the user's program.

        Raises:
            OutOfRangeError: A label or an id of a batch is out of range.
            CheckFailedError: A condition that the program checks does not hold.
        """
        return check_steps(self.checks, span)


@contextmanager
def open_session(
    front_end: FrontEnd, settings: RunSettings, task: TaskInfo, run: int, timeline: Timeline
) -> Iterator[Session]:
    """Compile the program and prepare the system to run steps; release it at the end of the body.

    Args:
        front_end: Front end of the user's program.
        settings: Options of the run.
        task: This task.
        run: Number of the run in the program (`next_run`).
        timeline: Records the phases.

    Raises:
        NoSystemError: `settings.cs_ip` is missing.
        cs_system.errors.SystemBusyError: Another job holds the system and this one does not wait.
    """
    from cs_runtime.compile import compile_for, target_of  # lazy: workers do not load the compiler

    if settings.cs_ip is None:
        raise NoSystemError
    # Connect before the slow work, so that a mistyped address fails immediately.
    target = target_of(settings)
    with record_failures(settings.artifact_dir):
        with timeline.phase("trace"):
            program = front_end.program()
            front_end.check_checkpoint()
        compiled = compile_for(program, settings, target, timeline)
    # Reserve after compiling, which needs no system.
    requirements = Requirements(
        target.fabric.model_dump(mode="json"),
        settings.options.share.wafers,
        compiled.artifact.estimates.execution,
    )
    reserving = SystemPool(parse_addresses(settings.cs_ip)).reserve(
        task.job_id, task.token, requirements, wait=task.wait, on_wait=WaitLog(log_first=True)
    )
    with contextlib.ExitStack() as stack:
        with timeline.phase("wait for the system"):
            client, reservation = stack.enter_context(reserving)
        spans = write_spans(task, run, client.read_clock, reservation.fetch_spans)
        with reservation, spans:
            identity = InputIdentity(run, front_end.input_facts())
            yield _load(reservation, front_end, program, compiled, target, settings, task, identity, timeline)


def prime(session: Session, task: TaskInfo, timeline: Timeline, check: Callable[[], None]) -> None:
    """Wait until every worker has connected and its first batch has arrived.

    Args:
        session: Session of the run.
        task: This task.
        timeline: Records the phase.
        check: Called periodically; an exception that it raises ends the wait (`run_in_process_worker`).
    """
    wait_log = WaitLog()

    def check_and_log(text: str) -> None:
        check()
        wait_log(text)

    def check_processes(absent: list[int]) -> None:
        directory = os.environ.get("CSRUN_LOG_DIR")
        finished = read_finished_workers(Path(directory), task.job_id) if directory and absent else set()
        for worker in finished.intersection(absent):
            raise WorkerLostError(
                f"worker {worker} has ended with exit code 0, and has not streamed into this run, which "
                "needs its batches; make chief and workers call the same functions of the estimator or "
                "loop, and see the log of the worker"
            )

    log.info("Waiting for %d streamer(s) to prime the data pipeline", task.num_workers)
    with timeline.phase("prime the input"):
        session.reservation.wait_workers(PRIME_TIMEOUT_S, check_and_log, check_processes)
    log.info("Streamers are ready")
    log.info(
        "Chief fully up. Waiting for Streaming (using %.2f%% of fabric cores)",
        100 * session.compiled.artifact.estimates.total_utilization,
    )


def _load(
    reservation: Reservation,
    front_end: FrontEnd,
    program: StepProgram,
    compiled: CompileResult,
    target: Target,
    settings: RunSettings,
    task: TaskInfo,
    identity: InputIdentity,
    timeline: Timeline,
) -> Session:
    with timeline.phase("send the program"), log_while_blocked("take the program"):
        reservation.load(compiled.artifact, settings.options.share)
    log.info(
        "Programming %s fabric. This may take a couple of minutes. Please do not interrupt.",
        re.sub(r"^cs([0-9]+)$", r"CS-\1", target.fabric.name),
    )
    with timeline.phase("program the fabric"), log_while_blocked("program the fabric"):
        seconds = reservation.program()
    log.info("Fabric programmed: this took %.1f seconds.", seconds)
    with timeline.phase("initial state"):
        with reservation.activity("computing the initial state"):
            state = front_end.initial_state()
        with log_while_blocked("take the initial state"):
            reservation.put_state(state)
    # Inference always reads its input from the start, regardless of the checkpoint's step.
    first_step = int(state[GLOBAL_STEP]) if program.mode == "train" else 0
    if program.mode == "train":
        record = start_record(settings, first_step, task.num_workers, front_end.sharding())
    else:
        record = InputRecord(0, task.num_workers, task.num_workers, "program", 0)
    place = record.place(schedule_from(settings, record) if record.cursors else b"")
    reservation.open_input(task.num_workers, identity, first_step, place)
    return Session(
        *(reservation, compiled, target, first_step, state, program.checks, program.every, record),
        metrics=program.metrics,
    )
