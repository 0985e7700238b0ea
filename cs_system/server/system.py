"""The CS system: reservations, one run at a time, and shutdown. Everything here runs in the event loop."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from concurrent.futures import Executor
from dataclasses import dataclass, field

from cs_stream.receiver import Receiver
from cs_system.authentication import Call, CallVerifier
from cs_system.errors import (
    ArtifactRefusedError,
    CallRefusedError,
    InputMismatchError,
    InputRefusedError,
    JoinTimeoutError,
    NoSuchJobError,
    ReservationLostError,
    RunOverError,
    SystemDrainedError,
    SystemStoppingError,
    TooManyWaitingError,
    clock_text,
)
from cs_system.memoryx.config import MemoryxConfig
from cs_system.messages import InputIdentity
from cs_system.monitoring.events import EventLog
from cs_system.monitoring.recorder import Totals
from cs_system.security import Caller
from cs_system.server.artifacts import ExecutableStore
from cs_system.server.chief import ChiefMonitor
from cs_system.server.engine_process import EnginePool
from cs_system.server.reservations import ReservationBook, Ticket
from cs_system.server.run import Run, RunLimits
from cs_system.server.state_directory import StateDirectory
from cs_system.status import EXECUTIONS, Admission
from cs_system.swarmx.hosts import HostPool
from cs_system.usage import UsageRecord
from cs_toolkit.log_lines import LineLimiter
from cs_toolkit.network.liveness import DEFAULT_PEER_TIMEOUT_S

log = logging.getLogger("cs_system.server")

# Interval of the messages to a waiting caller, sent even when nothing has changed, as a heartbeat.
STATUS_EVERY_S = 2.0

# Limit of a wait for a run in one call; workers call again.
_JOIN_LIMIT_S = 60.0
# Limit of waiting workers. Far above what jobs need, and low enough that nobody exhausts the memory.
_MAX_JOINING = 8192

# Number of jobs of which it is remembered why their workers wait.
_REMEMBERED_WAITS = 64


@dataclass(frozen=True)
class SystemOptions:
    """The options of `cs_system serve` that describe the system.

    Attributes:
        fabric: Name of the fabric's configuration.
        fabric_json: The configuration itself.
        advertise: Host where workers reach the data plane; empty: the one they used for the control plane.
        limits: Limits of every run.
        memoryx: Where the weights of weight streaming are stored.
        wafers: Number of wafers that can share a batch.
        peer_timeout_s: Silence after which a peer counts as lost.
        idle_release_s: Time after which a chief that does nothing loses the system; 0: never.
    """

    fabric: str
    fabric_json: str
    advertise: str = ""
    limits: RunLimits = field(default_factory=RunLimits)
    memoryx: MemoryxConfig = field(default_factory=MemoryxConfig)
    wafers: int = 1
    peer_timeout_s: float = DEFAULT_PEER_TIMEOUT_S
    idle_release_s: float = 0.0


class Change:
    """A change of the state of the system, which tasks wait for."""

    def __init__(self) -> None:
        self._event = asyncio.Event()

    def announce(self) -> None:
        """Wake all that wait for the change."""
        self._event.set()

    async def wait(self, timeout_s: float) -> bool:
        """Wait for the change; return False if it does not come in time."""
        # Not `asyncio.wait_for`, which Python 3.11 does not cancel in the moment in which the event is set: a
        # chief that has gone would hold the system until its silence is noticed.
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(max(0.0, timeout_s)):
                await self._event.wait()
        return self._event.is_set()


class Changes:
    """Wakes all tasks that wait for the state of the system to change.

    Take `next` before looking at the state and wait for it afterwards: then no change in between is missed.
    """

    def __init__(self) -> None:
        self._change = Change()

    def next(self) -> Change:
        """Return the next change."""
        return self._change

    def notify(self) -> None:
        """Announce a change."""
        change, self._change = self._change, Change()
        change.announce()


class System:
    """The system of a server.

    Args:
        options: Its configuration.
        device: The executor with the single thread that calls engines.
        engines: Starts the processes of engines.
        receiver: The data plane.
        executables: Cache of executables that were sent before.
        host_pool: Where wafers that share a batch are started; None: on this machine.
        files: State that survives a restart.
    """

    def __init__(
        self,
        options: SystemOptions,
        device: Executor,
        engines: EnginePool,
        receiver: Receiver,
        executables: ExecutableStore,
        host_pool: HostPool | None = None,
        files: StateDirectory | None = None,
    ) -> None:
        self.files = files or StateDirectory(None)
        self.options = options
        self.receiver = receiver
        self.executables = executables
        self.book = ReservationBook()
        self.run: Run | None = None
        self.chief: ChiefMonitor | None = None
        self.stopping: SystemStoppingError | None = None
        self.started_s = time.monotonic()
        self.events = EventLog()
        self.admission = self.files.read_admission()
        self.book.set_admission(not self.admission.drained_by, time.time())
        self.granted = 0
        self._ended_totals = Totals()
        self._ended_wafer_s = 0.0
        self._changes = Changes()
        self._device = device
        self._engines = engines
        self._host_pool = host_pool
        self._releases: dict[str, asyncio.Task[None]] = {}
        self._joining = 0
        # Why the workers of a job wait, as it was logged.
        self._waits: OrderedDict[str, str] = OrderedDict()
        self._wait_lines = LineLimiter(log, per_minute=30)

    def sample(self) -> None:
        """Record a sample of the current run, about once a second."""
        if self.run is not None:
            self.run.sample(time.monotonic(), time.time())

    def wafer_s(self) -> float:
        """Return the wafer-seconds of all reservations since the system started."""
        running = self.running_usage()
        return self._ended_wafer_s + (0.0 if running is None else running.wafer_s)

    def totals(self) -> Totals:
        """Return what all reservations since the system started have used."""
        return self._ended_totals if self.run is None else self._ended_totals + self.run.totals()

    def run_fields(self) -> dict[str, object]:
        """Return the job that holds the system and its step, for the log."""
        run = self.run
        return {} if run is None else {"job": run.job, "step": run.progress.step}

    def state(self) -> str:
        """Return IDLE or DRAINED, or the activity of the current run."""
        if self.run is not None:
            return self.run.state()
        return "DRAINED" if self.admission.drained_by else "IDLE"

    # Reservations

    def enter(self, job: str, token: str, wait: bool, owner: str = "", peer: str = "") -> Ticket:
        """Take a ticket for the system, or for a place in the queue.

        Args:
            job: Name of the job.
            token: Its secret.
            wait: Whether it queues for the system.
            owner: USER@HOST of the chief, as it states it.
            peer: Host from which it calls.

        Raises:
            SystemBusyError: another job holds the system and `wait` is false.
            TooManyWaitingError: the queue is full, or has too many jobs of this host.
            SystemDrainedError: the system takes no new jobs.
            SystemStoppingError: the system is shutting down.
        """
        self._check_running()
        if self.admission.drained_by:
            raise SystemDrainedError.of(self.admission.drained_by, self.admission.drained_s)
        return self.book.enter(job, token, wait, time.time(), owner, peer)

    async def grant(self, ticket: Ticket, on_queued: Callable[[int, Ticket | None], Awaitable[None]]) -> None:
        """Wait until the ticket holds the system.

        Args:
            ticket: From `enter`.
            on_queued: Called with (position in the queue, holder) now, after every change and every two
                seconds; without a holder the system is drained.

        Raises:
            SystemStoppingError: the system is shutting down.
        """
        while True:
            change = self._changes.next()
            self._check_running()
            position, holder = self.book.position(ticket), self.book.holder
            if position == 0:
                break
            await on_queued(position, holder)
            await change.wait(STATUS_EVERY_S)
        options = self.options
        self.run = Run(
            ticket.job,
            ticket.token,
            self._device,
            self.receiver,
            options.limits,
            options.memoryx,
            self._host_pool,
            self._engines,
        )
        self.chief = ChiefMonitor(
            ticket.job, options.peer_timeout_s, options.idle_release_s, time.monotonic()
        )
        self.granted += 1
        by = f" by {ticket.owner}" if ticket.owner else ""
        log.info("reserved%s", by, extra={"job": ticket.job})

    async def hold(self, ticket: Ticket) -> None:
        """Wait until a reservation has ended: by `release`, or because its chief does not use
        the system or does not answer.

        Raises:
            SystemStoppingError: the system is shutting down.
            ReservationLostError: the chief has not used the system, or not answered, for too long.
        """
        chief, run = self.chief, self.run
        assert chief is not None
        assert run is not None
        while self.book.holder is ticket:
            change = self._changes.next()
            self._check_running()
            await change.wait(chief.check_every_s)
            now_s = time.monotonic()
            if (line := chief.check(now_s, is_working=run.is_working)) is not None:
                log.warning("%s", line, extra={"job": ticket.job})
            why = chief.stall_text or chief.idle_text(now_s)
            if why is not None and ticket.ending is None:
                # Shielded, because the chief may end the call now, and the next job needs the system.
                await asyncio.shield(self.release(ticket, f"job {ticket.job} lost the system: {why}", why))
                raise ReservationLostError.because(why)

    def release_lost(self, ticket: Ticket) -> None:
        """Release a reservation whose chief is gone; does nothing if it has been released."""
        if ticket.ending is None:
            chief = self.chief if self.book.holder is ticket else None
            loss = "has gone" if chief is None else chief.loss_text
            reason, why = f"the chief of job {ticket.job} {loss}", f"its chief {loss}"
            if self.stopping is not None:
                reason = why = str(self.stopping)
            self.release(ticket, reason, why)

    def record_heartbeat(self, reservation: str, activity: str) -> ChiefMonitor | None:
        """Record a heartbeat of the holder's chief, and return its monitor; None for a job in the queue.

        Raises:
            ReservationLostError: the reservation has ended.
            SystemStoppingError: the system is shutting down.
        """
        self._check_running()
        if not reservation:
            return None
        ticket, chief = self.book.check_holder(reservation), self.chief
        if chief is not None and (line := chief.heartbeat(activity, time.monotonic())) is not None:
            log.info("%s", line, extra={"job": ticket.job})
        return chief

    def release(self, ticket: Ticket, reason: str | None, why: str) -> asyncio.Task[None]:
        """End a reservation: close the run's input, free the device, let the next job in.

        Args:
            ticket: Holding or waiting; a second release returns the task of the first.
            reason: Sent to the workers; None for a normal end.
            why: Sent to the chief if it makes further calls.
        """
        task = self._releases.get(ticket.id)
        if task is None:
            ticket.ending = why
            task = asyncio.create_task(self._release(ticket, reason, why))
            self._releases[ticket.id] = task
            task.add_done_callback(lambda _: self._releases.pop(ticket.id, None))
        return task

    async def _release(self, ticket: Ticket, reason: str | None, why: str) -> None:
        held = self.book.holder is ticket
        if held and self.run is not None:
            # The next job must get the system, whatever state this run has left.
            try:
                await self.run.close(reason)
            except Exception:
                log.exception("closing the run failed", extra={"job": ticket.job})
            record = self.usage_of(ticket, self.run, why)
            self._ended_wafer_s += record.wafer_s
            self._ended_totals = self.totals()
            self.run = self.chief = None
            try:
                # In a thread, because it waits for the disk.
                await asyncio.to_thread(self.files.append, record)
            except Exception:
                log.exception("recording the use of the system failed", extra={"job": ticket.job})
        self.book.leave(ticket, why, time.time())
        if held:
            log.info("the system is free: %s", why, extra={"job": ticket.job})
        self._changes.notify()
        if held:
            await asyncio.to_thread(self._engines.trim_cache)

    async def release_job(self, job: str, caller: Caller, by: str) -> tuple[Ticket, bool]:
        """End the reservation of a job, or its place in the queue, for a caller other than its chief.

        Args:
            job: Name of the job; empty: the one that holds the system.
            caller: The caller, whose role is checked.
            by: Name of the caller in messages.

        Returns:
            The job's ticket, and whether it held the system.

        Raises:
            NoSuchJobError: no such job holds the system or waits for it.
            NotAllowedError: it is another user's, and the caller is no administrator.
        """
        book = self.book
        tickets = [*([] if book.holder is None else [book.holder]), *(book.waiting if job else ())]
        tickets = [ticket for ticket in tickets if job in ("", ticket.job)]
        if not tickets:
            problem = f"job {job} neither holds it nor waits for it" if job else "no job holds it"
            raise NoSuchJobError(f"nothing to release at this CS system: {problem}")
        # Another user may have a job with the same name.
        ticket = next((ticket for ticket in tickets if caller.may_release(ticket.user)), tickets[0])
        caller.check_owner(ticket.user, f"release job {ticket.job} of {ticket.owner or 'another user'}")
        held = ticket is book.holder
        why = f"released by {by}"
        log.warning("%s", why, extra={"job": ticket.job})
        await asyncio.shield(self.release(ticket, f"the reservation was {why}", why))
        return ticket, held

    def admit(self, admission: Admission) -> None:
        """Change the jobs that the system takes; the running job continues, and the queue stays."""
        self.admission = admission
        self.files.write_admission(admission)
        self.book.set_admission(not admission.drained_by, time.time())
        self._changes.notify()

    def check_mode(self, execution: str) -> None:
        """Check that the system takes programs of an execution mode.

        Raises:
            ArtifactRefusedError: an administrator has excluded it.
        """
        modes = self.admission.modes
        if execution in EXECUTIONS and execution not in modes:
            raise ArtifactRefusedError(
                f"the program is compiled for execution {execution!r}, an administrator has set the mode of "
                f"this CS system to {' and '.join(modes)}; compile it for that (execution: {modes[0]}), or "
                "use another system"
            )

    # Usage

    def usage_of(self, ticket: Ticket, run: Run, end: str) -> UsageRecord:
        """Return the usage of a reservation until now."""
        totals, program = run.totals(), run.program
        return UsageRecord(
            ticket.job,
            ticket.owner,
            ticket.since_s,
            # Not the time of day, as the clock may have been set in the meantime.
            ticket.since_s + run.held_s,
            run.share.wafers,
            totals.steps,
            totals.samples,
            "" if program is None else program.execution,
            "" if program is None else program.key,
            end,
        )

    def running_usage(self) -> UsageRecord | None:
        """Return the usage of the current reservation; None if there is none."""
        holder, run = self.book.holder, self.run
        return None if holder is None or run is None else self.usage_of(holder, run, "")

    def run_of(self, reservation: str) -> Run:
        """Return the run that a call refers to.

        Raises:
            ReservationLostError: the reservation does not hold the system.
            SystemStoppingError: the system is shutting down.
        """
        self._check_running()
        self.book.check_holder(reservation)
        if self.run is None:
            raise ReservationLostError("the reservation of the CS system has ended")
        return self.run

    # Workers

    def input_opened(self) -> None:
        """Let waiting workers in."""
        self._changes.notify()

    async def join(
        self,
        job: str,
        verify: Callable[[Ticket], Call],
        timeout_s: float,
        identity: InputIdentity | None,
        worker: str,
        user: str = "",
    ) -> tuple[Call, Run]:
        """Wait until the chief of `job` has opened the input.

        Args:
            job: Name of the job.
            verify: Returns the worker's call; raises CallRefusedError unless it is proved to be one of the
                ticket's job.
            timeout_s: How long to wait.
            identity: The worker's input; None joins any.
            worker: Name of the worker in messages.
            user: Name in its certificate; jobs of other users may have the same name.

        Returns:
            The worker's call, and the run, with the step and the position at which its input begins.

        Raises:
            InputRefusedError: the worker does not know the token of the job.
            InputMismatchError: the chief has opened another input where the worker expects its own.
            RunOverError: the chief is in a later run; the worker was restarted.
            JoinTimeoutError: the input was not opened in time.
            TooManyWaitingError: too many workers wait.
            SystemStoppingError: the system is shutting down.
        """
        deadline = time.monotonic() + min(timeout_s, _JOIN_LIMIT_S)
        verified: CallVerifier | None = None
        call: Call | None = None
        while True:
            change = self._changes.next()
            self._check_running()
            holder = self.book.holder
            if holder is not None and (holder.job, holder.user) != (job, user):
                holder = None
            # Once, since a proof is accepted once: the next reservation of the job has the same verifier.
            if holder is not None and holder.joins is not verified:
                try:
                    call, verified = verify(holder), holder.joins
                except CallRefusedError:
                    raise InputRefusedError(
                        f"the worker's token is not that of job {job}; start chief and workers with one "
                        "csrun_wse"
                    ) from None
            run = None if holder is None else self._find_run(identity, worker)
            if run is not None and call is not None:
                return call, run
            if self._joining >= _MAX_JOINING:
                raise TooManyWaitingError(
                    f"{self._joining} workers wait for their runs, expected less than {_MAX_JOINING}; start "
                    "the job again later"
                )
            self._log_wait(job, user)
            self._joining += 1
            try:
                has_changed = await change.wait(deadline - time.monotonic())
            finally:
                self._joining -= 1
            if not has_changed:
                raise JoinTimeoutError.after(job, timeout_s, self._why_not_open(job, user))

    def _log_wait(self, job: str, user: str) -> None:
        """Log why the workers of a job wait, when they begin to and when the reason changes."""
        state = self._why_not_open(job, user)
        if self._waits.get(job) != state:
            self._waits[job] = state
            self._wait_lines.log(logging.INFO, "a worker waits: %s", state, extra={"job": job})
        while len(self._waits) > _REMEMBERED_WAITS:
            self._waits.popitem(last=False)

    def _find_run(self, identity: InputIdentity | None, worker: str) -> Run | None:
        """Return the run whose input a worker of the holder can join now, or None if it has to wait."""
        run = self.run
        if run is None or run.identity is None or (identity is not None and identity.run > run.identity.run):
            return None
        if identity is not None and identity.run < run.identity.run:
            raise RunOverError(
                f"run {identity.run} of the program is over: the chief is in {run.identity.run}"
            )
        differences = [] if identity is None else run.identity.differences(identity)
        if differences:
            error = InputMismatchError.of(worker, differences)
            run.refuse(error)
            raise error
        return run

    def _why_not_open(self, job: str, user: str) -> str:
        holder = self.book.holder
        if holder is None:
            return "the system is idle, its chief has not asked for it"
        if (holder.job, holder.user) != (job, user):
            queued = any((ticket.job, ticket.user) == (job, user) for ticket in self.book.waiting)
            place = "its chief queues for it" if queued else "its chief has not asked for it"
            return f"the system is held by {holder.job} since {clock_text(holder.since_s)}, {place}"
        if self.run is not None and self.run.identity is not None:
            return f"its chief is still in run {self.run.identity.run} of the program"
        return "its chief holds the system and is still programming it"

    # Shutdown

    def _check_running(self) -> None:
        if self.stopping is not None:
            raise self.stopping

    async def shut_down(self, cause: str) -> None:
        """End the current run and all waiting calls; every caller gets `cause`."""
        self.stopping = SystemStoppingError(
            f"the CS system is shutting down ({cause}); start the job again when it is back, "
            "training resumes from its last checkpoint"
        )
        self._changes.notify()
        holder = self.book.holder
        if holder is not None:
            await self.release(holder, str(self.stopping), str(self.stopping))
