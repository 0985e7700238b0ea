"""The gRPC front of the server: messages in, calls of `System` and `Run`, messages out."""

from __future__ import annotations

import asyncio
import functools
import json
import logging
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import asdict, dataclass, field, replace
from itertools import chain
from typing import Any, Generic, TypeVar

import numpy as np

from cs_system.authentication import Call, TensorTags
from cs_system.errors import (
    CsSystemError,
    InputRefusedError,
    JoinTimeoutError,
    StateMismatchError,
    WorkersTimeoutError,
    WrongOrderError,
    unexpected_error,
)
from cs_system.messages import (
    CHUNK_BYTES,
    TensorAssembler,
    identity_from_wire,
    pack_tensors,
    position_from_wire,
    position_to_wire,
    samples_per_step,
    share_from_wire,
    step_from_wire,
)
from cs_system.proto import cs_system_pb2 as pb
from cs_system.security import Caller, caller_of
from cs_system.server.artifacts import Offer
from cs_system.server.reservations import Ticket
from cs_system.server.run import Run
from cs_system.server.status import read_status, read_workers
from cs_system.server.steps import StepValues
from cs_system.server.system import STATUS_EVERY_S, System
from cs_system.status import EXECUTIONS, admission_to_wire, info_to_wire, input_to_wire
from cs_system.transport import (
    OLDEST_PROTOCOL,
    PROOF_KEY,
    PROTOCOL_VERSION,
    RESERVATION_KEY,
    check_client,
    error_metadata,
    shorten,
    status_code,
)
from cs_system.usage import GROUPINGS, GroupBy, UsageSum, sum_usage
from cs_toolkit.log_lines import LineLimiter
from cs_toolkit.security.sealing import SealError, SealingKey
from cs_toolkit.spans import clock_id

T = TypeVar("T")

log = logging.getLogger("cs_system.server")

# gRPC for Python is untyped; contexts and messages are made by generated code.
Context = Any
Handler = Callable[[Any, Any, Context], Awaitable[Any]]

# Capacity of the queue of outputs for a slow chief, in messages.
_OUTPUTS_WAITING = 8
# State is sent in parts of this size, because that of a large model may not fit into this process.
_STATE_BYTES = 64 << 20
_WATCH_INTERVAL_S = 0.05
_JOB_CHARS = 200
# Thousands of workers may wait.
_JOIN_BYTES = 64 << 10
_LOGGED_CHARS = 2000
_ACTIVITY_CHARS = 200
_SUMS_IN_MESSAGE = 1000


@dataclass
class _RunningSteps:
    """A RunSteps call in progress: the event that stops it, and whether PauseSteps set it."""

    stop: threading.Event = field(default_factory=threading.Event)
    paused: bool = False


def _clear_tracebacks(error: BaseException | None) -> None:
    """Let go of the frames that an error and its causes have passed."""
    # Futures and pending steps of these frames refer to the error: the memory of a run's batches would stay
    # until Python collects garbage, which an idle system does not.
    while error is not None:
        error.__traceback__ = None
        error = error.__cause__ or error.__context__


def _handle_errors(handler: Handler) -> Handler:
    """Decorate a handler to check the client's protocol first, and to send its errors to the client."""

    @functools.wraps(handler)
    async def handle(servicer: CsSystemServicer, request: Any, context: Context) -> Any:
        try:
            check_client(dict(context.invocation_metadata()))
            return await handler(servicer, request, _CountedContext(context, servicer.record_activity))
        except CsSystemError as error:
            failure = error
            # A worker whose chief is not ready asks again; `System.join` has logged why.
            if not isinstance(error, JoinTimeoutError):
                servicer.log_error(error)
        except Exception as error:
            log.exception("internal error in %s", handler.__name__)
            failure = unexpected_error("the CS system", error)
        _clear_tracebacks(failure)
        await context.abort(
            status_code(failure), shorten(str(failure).replace("\n", " "), 1000), error_metadata(failure)
        )
        return None

    return handle


def _for_holder(handler: Handler) -> Handler:
    """Decorate a handler to refuse calls that do not come from the job that holds the system."""

    @functools.wraps(handler)
    async def handle(servicer: CsSystemServicer, request: Any, context: Context) -> Any:
        servicer.check_caller(handler.__name__, request, context)
        try:
            return await handler(servicer, request, context)
        except CsSystemError as error:
            # If the reservation has ended, that is the cause, and the error only a consequence: its end stops
            # the steps, and kills the processes of an operation that does not end soon.
            ended = servicer.why_ended(_reservation(context))
            if ended is None:
                raise
            raise ended from error

    return handle


class _CountedContext:
    """The context of a call whose messages to the client count as activity of a chief."""

    def __init__(self, context: Context, record_activity: Callable[[str], None]) -> None:
        self._context = context
        self._record_activity = record_activity

    async def write(self, message: object) -> None:
        """Send a message; waits for a client that does not read."""
        await self._context.write(message)
        self._record_activity(_reservation(self._context))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._context, name)


class CsSystemServicer:
    """The gRPC servicer: its methods have the names of the RPCs."""

    def __init__(self, system: System) -> None:
        self._system = system
        self._sealing_key = SealingKey()
        self._offers: dict[str, Offer] = {}
        self._tasks: set[asyncio.Task[Any]] = set()
        self._running: dict[str, _RunningSteps] = {}
        self._error_lines: dict[type[CsSystemError], LineLimiter] = {}

    def log_error(self, error: CsSystemError) -> None:
        """Log an error that a client gets; lines of one class are limited, as any client can cause them."""
        lines = self._error_lines.setdefault(type(error), LineLimiter(log, per_minute=20))
        text = str(error).partition("\n")[0][:_LOGGED_CHARS]
        lines.log(logging.INFO, "%s: %s", type(error).__name__, text)

    # Without a reservation

    @_handle_errors
    async def Info(self, request: pb.InfoRequest, context: Context) -> pb.SystemInfo:
        """Return the status of the system and of its current run."""
        system = self._system
        info = info_to_wire(
            read_status(system), PROTOCOL_VERSION, system.options.advertise, system.receiver.address[1]
        )
        info.oldest_protocol = OLDEST_PROTOCOL
        info.nonce, info.public_key = system.book.nonce, self._sealing_key.public
        info.clock_s, info.clock_id = time.monotonic(), clock_id()
        return info

    @_handle_errors
    async def Reserve(self, request: pb.ReserveRequest, context: Context) -> None:
        """Hold the system for a job until the call ends; send the job's place in the queue before."""
        system = self._system
        job = request.job
        _check_job(job)
        caller, owner = _name_caller(context, request.owner)
        try:
            token = self._sealing_key.open(request.sealed_token).decode("utf-8", "surrogateescape")
        except SealError as error:
            raise InputRefusedError(f"{error}: the token of job {job}; start the job again") from None
        ticket = system.enter(job, token, request.wait, owner, _peer_host(context))
        ticket.user = caller.name

        async def report_position(position: int, holder: Ticket | None) -> None:
            queued = pb.Queued(position=position, since=system.admission.drained_s)
            if holder is not None:
                queued.held_by, queued.since = holder.job, holder.since_s
            await context.write(pb.ReserveEvent(queued=queued))

        try:
            await system.grant(ticket, report_position)
            await context.write(pb.ReserveEvent(granted=pb.Granted(reservation=ticket.id)))
            await system.hold(ticket)
        finally:
            self._offers.pop(ticket.id, None)
            system.release_lost(ticket)

    @_handle_errors
    async def Heartbeat(self, request: pb.HeartbeatRequest, context: Context) -> pb.HeartbeatReply:
        """Record that a chief is alive, and its activity."""
        activity = request.activity
        if not activity.isprintable() or len(activity) > _ACTIVITY_CHARS:
            raise InputRefusedError(
                f"got an activity of {len(activity)} characters, expected {_ACTIVITY_CHARS} printable at most"
            )
        if _reservation(context):
            self.check_caller("Heartbeat", request, context)
        chief = self._system.record_heartbeat(_reservation(context), activity)
        if chief is None:
            return pb.HeartbeatReply()
        return pb.HeartbeatReply(idle_s=chief.idle_s(time.monotonic()), idle_release_s=chief.idle_release_s)

    @_handle_errors
    async def Release(self, request: pb.ReleaseRequest, context: Context) -> pb.ReleaseReply:
        """End a reservation: the caller's own, or as an administrator any."""
        caller, by = _name_caller(context, request.caller)
        if request.job:
            _check_job(request.job)
        ticket, held = await self._system.release_job(request.job, caller, by)
        return pb.ReleaseReply(job=ticket.job, owner=ticket.owner, held=held)

    @_handle_errors
    async def SetAdmission(self, request: pb.AdmissionRequest, context: Context) -> pb.AdmissionReply:
        """Drain or resume the system, or set the modes of the programs that it takes."""
        system, (caller, by) = self._system, _name_caller(context, request.caller)
        caller.check_admin("change the jobs that the system takes")
        admission = system.admission
        if request.modes:
            unknown = [mode for mode in request.modes if mode not in EXECUTIONS]
            if unknown:
                raise InputRefusedError(
                    f"got the mode {unknown[0][:_JOB_CHARS]!r}, expected {' or '.join(EXECUTIONS)}"
                )
            admission = replace(admission, modes=tuple(mode for mode in EXECUTIONS if mode in request.modes))
            log.warning("mode set to %s by %s", " and ".join(admission.modes), by)
        if request.HasField("drained") and request.drained != bool(admission.drained_by):
            drained_by, drained_s = (by, time.time()) if request.drained else ("", 0.0)
            admission = replace(admission, drained_by=drained_by, drained_s=drained_s)
            log.warning("%s by %s", "drained" if request.drained else "resumed", by)
        if admission != system.admission:
            system.admit(admission)
        return pb.AdmissionReply(admission=admission_to_wire(admission))

    @_handle_errors
    async def Usage(self, request: pb.UsageRequest, context: Context) -> None:
        """Send what users or jobs have used in a period."""
        if request.by not in GROUPINGS:
            raise InputRefusedError(f"got by={request.by[:20]!r}, expected {' or '.join(GROUPINGS)}")
        by: GroupBy = "user" if request.by == "user" else "job"
        system = self._system
        running = system.running_usage()

        def read() -> list[UsageSum]:
            records = system.files.read_records(request.since)
            current = () if running is None else (running,)
            return sum_usage(chain(records, current), request.since, request.until, by)

        sums = await asyncio.to_thread(read)
        for first in range(0, len(sums), _SUMS_IN_MESSAGE):
            part = sums[first : first + _SUMS_IN_MESSAGE]
            await context.write(pb.UsageReply(sums=[pb.UsageSum(**asdict(one)) for one in part]))

    @_handle_errors
    async def JoinRun(self, request: pb.JoinRequest, context: Context) -> pb.JoinReply:
        """Wait, for a worker, until the chief of its job has opened the input."""
        _check_job(request.job)
        if request.ByteSize() > _JOIN_BYTES:
            raise InputRefusedError(
                f"the worker's description of its input has {request.ByteSize():,} bytes, expected at most "
                f"{_JOIN_BYTES:,}"
            )
        identity = identity_from_wire(request.identity) if request.HasField("identity") else None

        def verify(ticket: Ticket) -> Call:
            return ticket.joins.verify(_metadata(context, PROOF_KEY), "JoinRun", "", request)

        call, run = await self._system.join(
            request.job, verify, request.timeout_s, identity, request.worker, caller_of(context).name
        )
        reply = pb.JoinReply(
            data_host=self._system.options.advertise,
            data_port=self._system.receiver.address[1],
            first_step=run.first_step,
            position=position_to_wire(run.first_position),
        )
        reply.proof = call.prove_answer(reply)
        return reply

    # The phases of a run

    @_handle_errors
    @_for_holder
    async def OfferArtifact(self, request: pb.ArtifactOffer, context: Context) -> pb.ArtifactAnswer:
        """Take an artifact; return the digests of the executables that must be uploaded."""
        run = self._run(context)
        system = self._system
        system.check_mode(request.execution)
        offer = Offer(
            step_from_wire(request),
            system.options.fabric,
            system.executables,
            share_from_wire(request),
        )
        needed = await asyncio.to_thread(offer.look_up)
        if needed:
            self._offers[_reservation(context)] = offer
        else:
            await run.load(offer.step, offer.data(), offer.share)
        return pb.ArtifactAnswer(needed=needed)

    @_handle_errors
    @_for_holder
    async def UploadArtifact(
        self, requests: AsyncIterator[pb.ArtifactChunk], context: Context
    ) -> pb.ArtifactAnswer:
        """Receive the executables of the offered artifact, and load it."""
        run = self._run(context)
        offer = self._offers.pop(_reservation(context), None)
        if offer is None:
            raise WrongOrderError("UploadArtifact without OfferArtifact before it")
        async for chunk in requests:
            self.record_activity(_reservation(context))
            offer.add(chunk.sha256, chunk.data)
        await asyncio.to_thread(offer.complete)
        await run.load(offer.step, offer.data(), offer.share)
        return pb.ArtifactAnswer()

    @_handle_errors
    @_for_holder
    async def Program(self, request: pb.ProgramRequest, context: Context) -> pb.ProgramReply:
        """Compile the loaded artifact for the device."""
        return pb.ProgramReply(seconds=await self._run(context).program_device())

    @_handle_errors
    @_for_holder
    async def PutState(self, requests: AsyncIterator[pb.StateChunk], context: Context) -> pb.PutStateReply:
        """Receive the state, in parts."""
        run = self._run(context)
        assembler = TensorAssembler(self._call(context).requested_tensors(), _state_check(run))
        async for chunk in requests:
            # Before the next chunk is added, so that some tensors are left for the last call: without any
            # tensors it would begin a new state.
            if assembler.complete_bytes > _STATE_BYTES:
                await run.put_state(assembler.take())
            self.record_activity(_reservation(context))
            assembler.add(chunk.tensors)
        await run.put_state(assembler.finish())
        run.end_state()
        return pb.PutStateReply()

    @_handle_errors
    @_for_holder
    async def OpenInput(self, request: pb.OpenInputRequest, context: Context) -> pb.OpenInputReply:
        """Let the workers of the run connect."""
        identity = identity_from_wire(request.identity)
        position = position_from_wire(request.position)
        self._run(context).open_input(request.num_workers, identity, request.first_step, position)
        self._system.input_opened()
        return pb.OpenInputReply()

    @_handle_errors
    @_for_holder
    async def WatchInput(self, request: pb.WatchInputRequest, context: Context) -> None:
        """Send the state of the workers until all are ready."""
        deadline = time.monotonic() + request.timeout_s
        last: str | None = ""
        reported_s = 0.0
        while True:
            run = self._run(context)
            missing = run.check_primed()
            due = missing != last or time.monotonic() - reported_s > STATUS_EVERY_S
            if due and (stats := run.input_stats()) is not None:
                message = input_to_wire(read_workers(run, stats), run.waiting_for(stats))
                message.missing = missing or ""
                await context.write(message)
                last, reported_s = missing, time.monotonic()
            if missing is None:
                log.info("all workers are ready", extra={"job": run.job})
                return
            if time.monotonic() > deadline:
                raise WorkersTimeoutError(
                    f"not all workers were ready within {request.timeout_s:g} s: {missing}; see their logs"
                )
            # Polling, as the receiver's threads do not notify the event loop; a check costs microseconds.
            await asyncio.sleep(_WATCH_INTERVAL_S)

    @_handle_errors
    @_for_holder
    async def RunSteps(self, request: pb.RunStepsRequest, context: Context) -> None:
        """Run steps, and send their outputs while they run."""
        run, reservation = self._run(context), _reservation(context)
        batch_size = samples_per_step(run.program.interface) if run.program else 1
        tags = self._call(context).answered_tensors()
        channel: ThreadChannel[StepValues] = ThreadChannel(_OUTPUTS_WAITING)
        running = self._running[reservation] = _RunningSteps()
        stop = running.stop
        every = dict(request.output_every)
        steps = asyncio.create_task(run.run_steps(request.steps, channel.put, stop, every))
        self._keep_task(steps)
        steps.add_done_callback(lambda _: channel.close())
        done = 0
        try:
            async for values in _stream_values(channel, run, context):
                for message in _span_messages(values, batch_size, tags):
                    await context.write(message)
                done += values.count
                if (news := run.news()) is not None:
                    await context.write(pb.RunEvent(news=news))
            end_of_input = await steps
        finally:
            if self._running.get(reservation) is running:
                del self._running[reservation]
            if not steps.done():
                stop.set()
                channel.close()
        ended_early = done < request.steps and not end_of_input
        if ended_early and not running.paused:
            raise WrongOrderError("the steps were stopped")
        await context.write(pb.RunEvent(end=pb.RunEnd(end_of_input=end_of_input, paused=ended_early)))

    @_handle_errors
    @_for_holder
    async def PauseSteps(self, request: pb.PauseStepsRequest, context: Context) -> pb.PauseStepsReply:
        """End the running steps after those that the device has begun."""
        self._run(context)
        running = self._running.get(_reservation(context))
        if running is not None:
            running.paused = True
            running.stop.set()
        return pb.PauseStepsReply()

    @_handle_errors
    @_for_holder
    async def FetchSpans(self, request: pb.FetchSpansRequest, context: Context) -> None:
        """Send the spans of the run, for the timeline of its job."""
        run = self._run(context)
        documents = await asyncio.to_thread(run.span_documents, request.limit or None)
        data = json.dumps(documents).encode()
        for start in range(0, len(data), CHUNK_BYTES):
            await context.write(pb.SpansChunk(data=data[start : start + CHUNK_BYTES]))

    @_handle_errors
    @_for_holder
    async def FetchState(self, request: pb.FetchStateRequest, context: Context) -> None:
        """Send the state, or part of it, as it is now, while further steps may run."""
        run = self._run(context)
        wanted, tags = list(request.names) or None, self._call(context).answered_tensors()
        async with run.snapshot(wanted) as read:
            await context.write(pb.StateChunk())  # from now on steps do not change the state that is read
            for names in run.state_groups(wanted, _STATE_BYTES):
                for group in pack_tensors(await read(names), tags):
                    await context.write(pb.StateChunk(tensors=group))

    @_handle_errors
    @_for_holder
    async def StopRun(self, request: pb.StopRequest, context: Context) -> pb.StopReply:
        """Close the input of the run; release the system if requested."""
        run = self._run(context)
        reason = request.reason or None
        if reason is not None:
            log.info("run stopped by the chief: %s", shorten(reason, 300), extra={"job": run.job})
        await run.close_input(reason)
        if request.release:
            ticket = self._system.book.check_holder(_reservation(context))
            await asyncio.shield(self._system.release(ticket, reason, "released by its chief"))
        return pb.StopReply()

    def check_caller(self, rpc: str, request: Any, context: Context) -> None:
        """Check that a call comes from the job that holds the system.

        Raises:
            ReservationLostError: its reservation does not hold the system.
            SystemStoppingError: the system is shutting down.
            CallRefusedError: it does not prove that it comes from the job, or came before.
        """
        reservation = _reservation(context)
        self._system.run_of(reservation)
        ticket = self._system.book.check_holder(reservation)
        ticket.calls.verify(_metadata(context, PROOF_KEY), rpc, reservation, request)

    def why_ended(self, reservation: str) -> CsSystemError | None:
        """Return why a running call cannot continue, or None if it can."""
        try:
            self._system.run_of(reservation)
        except CsSystemError as error:
            return error
        return None

    def _call(self, context: Context) -> Call:
        """Return the call that `check_caller` has checked."""
        ticket = self._system.book.check_holder(_reservation(context))
        return ticket.calls.read(_metadata(context, PROOF_KEY))

    def record_activity(self, reservation: str) -> None:
        """Record that a chief uses the system, if the reservation holds it."""
        holder, chief = self._system.book.holder, self._system.chief
        if chief is not None and holder is not None and holder.id == reservation:
            chief.act(time.monotonic())

    def _run(self, context: Context) -> Run:
        run = self._system.run_of(_reservation(context))
        self.record_activity(_reservation(context))
        return run

    def _keep_task(self, task: asyncio.Task[Any]) -> None:
        """Keep a reference to a task that may outlive its RPC, and retrieve its error."""
        self._tasks.add(task)

        def discard(task: asyncio.Task[Any]) -> None:
            self._tasks.discard(task)
            if not task.cancelled():
                task.exception()

        task.add_done_callback(discard)


async def _stream_values(
    channel: ThreadChannel[StepValues], run: Run, context: Context
) -> AsyncIterator[StepValues]:
    """Yield the values of a channel; when none comes for some seconds, send the client the reason."""
    while True:
        since_s, values = time.monotonic(), asyncio.ensure_future(channel.get())
        try:
            while not (await asyncio.wait({values}, timeout=STATUS_EVERY_S))[0]:
                await context.write(pb.RunEvent(waiting=run.delay_text(since_s)))
        finally:
            values.cancel()  # no effect if it is done
        got = values.result()
        if got is None:
            return
        yield got


def _reservation(context: Context) -> str:
    return _metadata(context, RESERVATION_KEY)


def _metadata(context: Context, key: str) -> str:
    return next((str(v) for k, v in context.invocation_metadata() if k == key), "")


def _check_job(name: str) -> None:
    """Check the name of a job, which is written to logs and terminals.

    Raises:
        InputRefusedError: it is empty, too long or not printable.
    """
    if not name.isprintable() or not 1 <= len(name) <= _JOB_CHARS:
        raise InputRefusedError(
            f"got the job name {name[:_JOB_CHARS]!r}, expected 1 to {_JOB_CHARS} printable characters"
        )


def _name_caller(context: Context, stated: str) -> tuple[Caller, str]:
    """Return the caller, and USER@HOST for logs and status.

    The host is as the caller states it; the user is that of the certificate, where there is one.

    Raises:
        InputRefusedError: the name is not printable.
    """
    if not stated.isprintable() or len(stated) > _JOB_CHARS:
        raise InputRefusedError(
            f"got the caller {stated[:_JOB_CHARS]!r}, expected at most {_JOB_CHARS} printable characters"
        )
    caller = caller_of(context)
    host = stated.partition("@")[2]
    if not caller.name:
        return caller, stated
    return caller, f"{caller.name}@{host}" if host else caller.name


def _peer_host(context: Context) -> str:
    """Return the host of the caller; gRPC has it as `ipv4:HOST:PORT` or `ipv6:%5bHOST%5d:PORT`."""
    return str(context.peer()).rpartition(":")[0]


def _state_check(run: Run) -> Callable[[str, str, tuple[int, ...]], None]:
    """Return a check that refuses wrong tensors before memory is allocated for them."""
    program = run.program
    if program is None:
        raise WrongOrderError("put_state without an artifact; load comes first")
    expected = {spec.name: (spec.dtype, spec.shape) for spec in program.interface.state}

    def check(name: str, dtype: str, shape: tuple[int, ...]) -> None:
        if name not in expected:
            raise StateMismatchError.of([f"'{name}' is not state of the program"])
        if expected[name] != (dtype, shape):
            want_dtype, want_shape = expected[name]
            raise StateMismatchError.of(
                [f"'{name}' is {dtype}{list(shape)}, expected {want_dtype}{list(want_shape)}"]
            )

    return check


def _span_messages(values: StepValues, batch_size: int, tags: TensorTags) -> list[pb.RunEvent]:
    """Return the message of a span of steps, or several if the outputs are too large for one."""
    outputs: dict[str, np.ndarray] = values.outputs
    groups = list(pack_tensors(outputs, tags)) or [[]]
    return [
        pb.RunEvent(
            span=pb.StepSpan(
                first_step=values.first_step,
                count=values.count,
                samples=values.count * batch_size,
                outputs=group,
                last=index == len(groups) - 1,
                began_s=values.began_s,
                ended_s=values.ended_s,
                waited_s=values.waited_s,
                position=position_to_wire(values.position),
                shards=values.shards,
            )
        )
        for index, group in enumerate(groups)
    ]


class ThreadChannel(Generic[T]):
    """A bounded queue from one thread to one coroutine of the event loop that created it.

    Args:
        capacity: Maximum number of items in the queue; the thread waits for room.
    """

    def __init__(self, capacity: int) -> None:
        self._loop = asyncio.get_running_loop()
        self._items: asyncio.Queue[T | None] = asyncio.Queue()
        self._room = threading.Semaphore(capacity)
        self._closed = False

    def put(self, item: T) -> None:
        """Put an item, from the thread; waits for room. Once the channel is closed the item is dropped."""
        if self._closed:
            return
        self._room.acquire()
        if not self._closed:
            self._loop.call_soon_threadsafe(self._items.put_nowait, item)

    def close(self) -> None:
        """End `get`, and any wait of the thread; called in the loop."""
        self._closed = True
        # Ends the one `put` that may be waiting; later items are dropped before they wait.
        self._room.release()
        self._items.put_nowait(None)

    async def get(self) -> T | None:
        """Return the next item, or None after the last one of a closed channel."""
        item = await self._items.get()
        self._room.release()
        return item
