"""The chief's way onto the CS system: compile or reuse, reserve, program, load the state, open the input."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from cgc.driver import CompileResult
from cs_system.client import Reservation, SystemClient, parse_address
from csrun.roles import TaskInfo
from runtime.compile import Target, compile_for, target_of
from runtime.errors import NoSystemError
from runtime.failures import noted_failures
from runtime.program import GLOBAL_STEP, FrontEnd, State
from runtime.settings import RunSettings
from runtime.timeline import Timeline

log = logging.getLogger("runtime")

# Workers of one job start together; a worker that is this late has failed without the launcher noticing.
PRIME_TIMEOUT_S = 600.0


@dataclass
class Session:
    """A programmed and loaded CS system that waits for the first step."""

    reservation: Reservation
    compiled: CompileResult
    target: Target
    first_step: int
    initial_state: State


@contextmanager
def open_session(
    front_end: FrontEnd, settings: RunSettings, task: TaskInfo, timeline: Timeline
) -> Iterator[Session]:
    """Brings the system to the point where steps can run; gives it back at the end of the body.

    The address is tried before anything slow happens, so that a typing error shows at once; the system is
    reserved only after the compile, which needs no system.

    Raises:
        NoSystemError: no `cs_ip`.
        cs_system.errors.SystemBusyError: another job holds the system and this one does not wait.
    """
    if settings.cs_ip is None:
        raise NoSystemError
    target = target_of(settings)
    with noted_failures(settings.artifact_dir):
        with timeline.phase("trace"):
            program = front_end.program()
        compiled = compile_for(program, settings, target, timeline)
    with SystemClient(parse_address(settings.cs_ip)) as client:
        with timeline.phase("wait for the system"):
            reservation = client.reserve(task.job_id, task.token, wait=task.wait, on_wait=log.info)
        with reservation:
            yield _load(reservation, front_end, compiled, target, task, timeline, program.mode == "train")


def prime(session: Session, task: TaskInfo, timeline: Timeline) -> None:
    """Waits until every worker has connected and its first batch is on the system."""
    log.info("Waiting for %d streamer(s) to prime the data pipeline", task.num_workers)
    with timeline.phase("prime the input"):
        session.reservation.wait_workers(PRIME_TIMEOUT_S, log.debug)
    log.info("Streamers are ready")
    log.info(
        "Chief fully up. Waiting for Streaming (using %.2f%% of fabric cores)",
        100 * session.compiled.artifact.estimates.total_utilization,
    )


def _load(
    reservation: Reservation,
    front_end: FrontEnd,
    compiled: CompileResult,
    target: Target,
    task: TaskInfo,
    timeline: Timeline,
    resume: bool,
) -> Session:
    with timeline.phase("send the program"):
        reservation.load(compiled.artifact)
    log.info(
        "Programming %s fabric. This may take a couple of minutes. Please do not interrupt.",
        re.sub(r"^cs([0-9]+)$", r"CS-\1", target.fabric.name),
    )
    with timeline.phase("program the fabric"):
        seconds = reservation.program()
    log.info("Fabric programmed: this took %.1f seconds.", seconds)
    with timeline.phase("initial state"):
        state = front_end.initial_state()
        reservation.put_state(state)
    # Inference reads its input from the start, whatever the step of the checkpoint.
    first_step = int(state[GLOBAL_STEP]) if resume else 0
    reservation.open_input(task.num_workers, front_end.input_digest(), first_step)
    return Session(reservation, compiled, target, first_step, state)
