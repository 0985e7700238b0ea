"""The status of a CS system: one model for the server, its page and metrics, and the commands that ask it.

As plain data, as the message of the control plane, and as the text of `cs_system status`.
"""

from __future__ import annotations

import json
from collections.abc import Container, Iterable, Sequence
from dataclasses import asdict, dataclass, field, fields, is_dataclass
from typing import Any, cast, get_args

from cs_system.address import SystemAddress, host_port
from cs_system.errors import WireFormatError, clock_text, duration_text
from cs_system.proto import cs_system_pb2 as pb
from cs_toolkit.figures import format_rate, format_share
from cs_toolkit.log_lines import escape_controls
from cs_toolkit.network.frames import FrameError, decode_object
from cs_toolkit.step import INPUT_BOUND_SHARE, Execution

# A chief that has done nothing for less time than this is not shown as idle.
_IDLE_SHOWN_S = 60.0


@dataclass(frozen=True)
class WorkerInfo:
    """A worker of the current run.

    Attributes:
        phase: absent, connected, lost, ended or failed.
        host: Name of its machine; empty before it has connected.
        batches: Number received from it in this run.
        size_bytes: Payload bytes of these.
        queue: Batches that have arrived and are not computed on yet.
        reconnects: Number of connections after the first one.
        last_error: Why its last connection ended; empty after a normal end.
        batches_per_s, bytes_per_s: Rates over the last seconds.
        credit_wait: Fraction of the last seconds in which it had no credit: the system limits the worker.
        input_wait: Fraction of the last seconds in which the device waited for it: the worker limits the
            system.
    """

    worker: int
    phase: str
    host: str
    batches: int
    size_bytes: int = 0
    queue: int = 0
    reconnects: int = 0
    last_error: str = ""
    batches_per_s: float = 0.0
    bytes_per_s: float = 0.0
    credit_wait: float = 0.0
    input_wait: float = 0.0

    @property
    def limits_run(self) -> bool:
        """True if the device waits for this worker."""
        return self.input_wait > INPUT_BOUND_SHARE


@dataclass(frozen=True)
class WaferInfo:
    """Utilization of a wafer of a group over the last seconds; the rest of the time it waited.

    Attributes:
        computing: Fraction of time spent on work that needs no other wafer; sums over wafers are not counted,
            as a wafer waits in them.
        receiving: Fraction of time in which weights arrived.
    """

    computing: float
    receiving: float


@dataclass(frozen=True)
class WeightTraffic:
    """Bytes between wafer and MemoryX in this reservation, and per second over the last seconds."""

    to_wafer_bytes: int
    to_memory_bytes: int
    to_wafer_bytes_per_s: float = 0.0
    to_memory_bytes_per_s: float = 0.0


@dataclass(frozen=True)
class RunInfo:
    """The current run.

    Attributes:
        since: When its job got the system, seconds since the epoch.
        step: Number of completed steps.
        steps_per_s: Rate over the last seconds.
        samples_per_s: Rate over the last seconds.
        workers: Empty until the chief has opened the input.
        waiting_for: Indices of the workers whose batches the run is waiting for.
        late: Sentence about a part of the system that has not answered for seconds; empty: none.
        slow: Sentence about a wafer that the others wait for; empty: none.
        wafers: Utilization of each wafer, if there are several.
        owner: USER@HOST of the chief, as the chief states it.
        artifact: Key of the loaded program; empty: none yet.
        execution: Its execution mode.
        wafers_used: Number of wafers that share a batch.
        bound_by: Kernels that bound its estimated rate on the wafer.
        loss: Loss of the last step; None if the step outputs none.
        samples: Number of samples in this reservation.
        input_bytes_per_s: Rate of batches over the last seconds.
        input_wait: Fraction of the last seconds in which the device waited for a batch.
        input_bound: True if that is more than a run that keeps its device busy has.
        weights: Traffic with MemoryX; None if the whole model is on the wafer.
        activity: Work that the chief does without a call; empty: none.
        idle_s: For how long the chief has held the system without any activity.
    """

    job: str
    since: float
    step: int
    steps_per_s: float
    samples_per_s: float
    workers: tuple[WorkerInfo, ...]
    waiting_for: tuple[int, ...]
    late: str = ""
    slow: str = ""
    wafers: tuple[WaferInfo, ...] = ()
    owner: str = ""
    artifact: str = ""
    execution: str = ""
    wafers_used: int = 1
    bound_by: tuple[str, ...] = ()
    loss: float | None = None
    samples: int = 0
    input_bytes_per_s: float = 0.0
    input_wait: float = 0.0
    input_bound: bool = False
    weights: WeightTraffic | None = None
    activity: str = ""
    idle_s: float = 0.0


@dataclass(frozen=True)
class QueuedJob:
    """A job that waits for the system since a time in seconds since the epoch."""

    job: str
    owner: str
    since: float


@dataclass(frozen=True)
class Event:
    """A line of the system's log.

    Attributes:
        time: Seconds since the epoch.
        level: Of Python's logging, such as WARNING.
        job: Empty for a line about the system.
        text: The line.
    """

    time: float
    level: str
    job: str
    text: str


@dataclass(frozen=True)
class Limits:
    """Limits of the system, in bytes."""

    message_bytes: int
    artifact_bytes: int
    input_memory_bytes: int


EXECUTIONS: tuple[str, ...] = get_args(Execution)


@dataclass(frozen=True)
class Admission:
    """The jobs that a system takes.

    Attributes:
        drained_by: Name of the caller that has drained it; empty if it takes new jobs.
        drained_s: Since when, in seconds since the epoch.
        modes: Execution modes of the programs that it takes.
    """

    drained_by: str = ""
    drained_s: float = 0.0
    modes: tuple[str, ...] = EXECUTIONS


@dataclass(frozen=True)
class SystemInfo:
    """A system.

    Attributes:
        version: Version of its toolkit.
        state: IDLE, DRAINED (and idle), RESERVED, PROGRAMMING, WAITING FOR INPUT or RUNNING.
        fabric: Name of the fabric's configuration.
        fabric_spec: The configuration itself, for `cs_toolkit.fabric.Fabric`.
        data_address: Address at which workers reach it.
        run: None when the system is idle.
        waiting_jobs: Number of jobs in the queue.
        num_csx: Number of wafers that can share a batch.
        queue: The waiting jobs, the next one first.
        events: Last lines of its log, the newest last.
        wafer_s: Wafer-seconds of all reservations since the system started.
        admission: The jobs that it takes.
    """

    name: str
    version: str
    address: str
    state: str
    fabric: str
    fabric_spec: dict[str, Any]
    data_address: str
    uptime_s: float
    waiting_jobs: int
    run: RunInfo | None
    limits: Limits
    num_csx: int = 1
    queue: tuple[QueuedJob, ...] = ()
    events: tuple[Event, ...] = ()
    wafer_s: float = 0.0
    admission: Admission = field(default_factory=Admission)

    def to_json(self) -> dict[str, Any]:
        """Return plain values with the names of the attributes."""
        return asdict(self)


def info_to_wire(info: SystemInfo, protocol: int, data_host: str, data_port: int) -> pb.SystemInfo:
    """Convert a status to its message.

    Args:
        info: The status.
        protocol: Version of the control plane.
        data_host: Host of the data plane; empty: the one that the client uses for the control plane.
        data_port: Port of the data plane.
    """
    message = pb.SystemInfo(
        name=info.name,
        version=info.version,
        protocol=protocol,
        state=info.state,
        fabric=info.fabric,
        fabric_json=json.dumps(info.fabric_spec),
        data_host=data_host,
        data_port=data_port,
        uptime_s=info.uptime_s,
        waiting_jobs=info.waiting_jobs,
        limits=pb.Limits(**asdict(info.limits)),
        num_csx=info.num_csx,
        queue=[pb.QueuedJob(**asdict(job)) for job in info.queue],
        events=[pb.Event(**asdict(event)) for event in info.events],
        wafer_s=info.wafer_s,
        admission=admission_to_wire(info.admission),
    )
    if info.run is not None:
        message.run.CopyFrom(_run_to_wire(info.run))
    return message


def _run_to_wire(run: RunInfo) -> pb.RunInfo:
    return pb.RunInfo(
        job=run.job,
        since=run.since,
        step=run.step,
        steps_per_s=run.steps_per_s,
        samples_per_s=run.samples_per_s,
        input=input_to_wire(run.workers, run.waiting_for),
        late=run.late,
        slow=run.slow,
        wafers=[pb.WaferWork(**asdict(wafer)) for wafer in run.wafers],
        owner=run.owner,
        artifact=run.artifact,
        execution=run.execution,
        wafers_used=run.wafers_used,
        bound_by=run.bound_by,
        loss=run.loss,
        samples=run.samples,
        input_bytes_per_s=run.input_bytes_per_s,
        input_wait=run.input_wait,
        input_bound=run.input_bound,
        weights=None if run.weights is None else pb.WeightTraffic(**asdict(run.weights)),
        activity=run.activity,
        idle_s=run.idle_s,
    )


def input_to_wire(workers: Iterable[WorkerInfo], waiting_for: Sequence[int]) -> pb.InputStatus:
    """Convert the status of the workers, and the indices of those that the run waits for, to a message."""
    return pb.InputStatus(workers=map(_worker_to_wire, workers), waiting_for=waiting_for)


def _worker_to_wire(worker: WorkerInfo) -> pb.WorkerStatus:
    values = asdict(worker)
    return pb.WorkerStatus(bytes=values.pop("size_bytes"), **values)


def _worker_from_wire(message: pb.WorkerStatus) -> WorkerInfo:
    names = [each.name for each in fields(WorkerInfo) if each.name != "size_bytes"]
    return WorkerInfo(**{name: getattr(message, name) for name in names}, size_bytes=message.bytes)


def read_info(message: pb.SystemInfo, address: SystemAddress) -> SystemInfo:
    """Convert the answer of the system at `address`.

    Raises:
        WireFormatError: its fabric is no JSON object.
    """
    try:
        fabric_spec = decode_object(message.fabric_json.encode())
    except FrameError as error:
        raise WireFormatError(f"the status of {address} has no fabric: {error}") from None
    info = SystemInfo(
        name=message.name,
        version=message.version,
        address=str(address),
        state=message.state,
        fabric=message.fabric,
        fabric_spec=fabric_spec,
        data_address=host_port(message.data_host or address.host, message.data_port),
        uptime_s=message.uptime_s,
        waiting_jobs=message.waiting_jobs,
        run=_run_from_wire(message.run) if message.HasField("run") else None,
        limits=Limits(
            message.limits.message_bytes, message.limits.artifact_bytes, message.limits.input_memory_bytes
        ),
        num_csx=message.num_csx or 1,
        queue=tuple(QueuedJob(job.job, job.owner, job.since) for job in message.queue),
        events=tuple(Event(e.time, e.level, e.job, e.text) for e in message.events),
        wafer_s=message.wafer_s,
        admission=admission_from_wire(message.admission),
    )
    # Names, errors of workers and lines of the log come from clients of any user.
    return cast(SystemInfo, _escape(info))


def _escape(value: Any) -> Any:
    """Return a value of a status with escapes for the control characters in its texts."""
    if isinstance(value, str):
        return escape_controls(value)
    if isinstance(value, tuple):
        return tuple(map(_escape, value))
    if is_dataclass(value) and not isinstance(value, type):
        return type(value)(**{each.name: _escape(getattr(value, each.name)) for each in fields(value)})
    return value


def admission_to_wire(admission: Admission) -> pb.Admission:
    """Convert the jobs that a system takes to their message."""
    return pb.Admission(**asdict(admission))


def admission_from_wire(message: pb.Admission) -> Admission:
    """Convert the message of the jobs that a system takes back."""
    return Admission(message.drained_by, message.drained_s, tuple(message.modes))


def _run_from_wire(run: pb.RunInfo) -> RunInfo:
    weights = run.weights
    return RunInfo(
        job=run.job,
        since=run.since,
        step=run.step,
        steps_per_s=run.steps_per_s,
        samples_per_s=run.samples_per_s,
        workers=tuple(_worker_from_wire(worker) for worker in run.input.workers),
        waiting_for=tuple(run.input.waiting_for),
        late=run.late,
        slow=run.slow,
        wafers=tuple(WaferInfo(wafer.computing, wafer.receiving) for wafer in run.wafers),
        owner=run.owner,
        artifact=run.artifact,
        execution=run.execution,
        wafers_used=run.wafers_used,
        bound_by=tuple(run.bound_by),
        loss=run.loss if run.HasField("loss") else None,
        samples=run.samples,
        input_bytes_per_s=run.input_bytes_per_s,
        input_wait=run.input_wait,
        input_bound=run.input_bound,
        weights=WeightTraffic(
            weights.to_wafer_bytes,
            weights.to_memory_bytes,
            weights.to_wafer_bytes_per_s,
            weights.to_memory_bytes_per_s,
        )
        if run.HasField("weights")
        else None,
        activity=run.activity,
        idle_s=run.idle_s,
    )


def render(info: SystemInfo, now_s: float) -> str:
    """Render a system and its run as a few lines; `now_s` is in seconds since the epoch."""
    rows = [
        ("system", f"{info.name} at {info.address}, data plane {info.data_address}"),
        ("toolkit", f"{info.version}, fabric {info.fabric}, up {duration_text(info.uptime_s)}"),
        ("state", info.state),
    ]
    if info.admission.drained_by:
        since = clock_text(info.admission.drained_s)
        rows.append(("drained", f"by {info.admission.drained_by} since {since}: takes no new jobs"))
    if info.admission.modes != EXECUTIONS:
        rows.append(("mode", f"{' and '.join(info.admission.modes).replace('_', ' ')} only"))
    if info.num_csx > 1:
        rows.insert(1, ("wafers", str(info.num_csx)))
    if info.run is not None:
        rows += _run_rows(info.run, now_s)
    if info.waiting_jobs:
        jobs = ", ".join(_name_job(job.job, job.owner) for job in info.queue)
        rows.append(("queue", f"{info.waiting_jobs} job(s) waiting{jobs and ': '}{jobs}"))
    return "\n".join(f"{label:<8} {text}" for label, text in rows)


def render_table(infos: Sequence[SystemInfo], now_s: float) -> str:
    """Render several systems as a table; `now_s` is in seconds since the epoch."""
    rows = [("SYSTEM", "STATE", "QUEUE", "STEP", "STEPS/S", "FOR", "JOB")]
    for info in infos:
        run = info.run
        state = f"{info.state}, DRAINED" if info.admission.drained_by and run is not None else info.state
        of_run = ("", "", "", "")
        if run is not None:
            since = duration_text(now_s - run.since)
            of_run = (f"{run.step:,}", f"{run.steps_per_s:,.1f}", since, _name_job(run.job, run.owner))
        rows.append((info.address, state, str(info.waiting_jobs), *of_run))
    return format_table(rows, right={2, 3, 4})


def format_table(rows: Sequence[Sequence[str]], right: Container[int] = ()) -> str:
    """Align rows in columns; `right` has the numbers of columns that are aligned at the right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join(
        "  ".join(
            cell.rjust(width) if number in right else cell.ljust(width)
            for number, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    )


def _run_rows(run: RunInfo, now_s: float) -> list[tuple[str, str]]:
    job = _name_job(run.job, run.owner)
    rows = [("job", f"{job} since {clock_text(run.since)} ({duration_text(now_s - run.since)})")]
    if run.artifact:
        rows.append(("program", f"cs_{run.artifact[:12]}, {run.execution.replace('_', ' ')}"))
    if run.activity:
        rows.append(("chief", run.activity))
    elif run.idle_s >= _IDLE_SHOWN_S:
        rows.append(("chief", f"has not used the system for {duration_text(run.idle_s)}"))
    if run.late:
        rows.append(("late", run.late))
    if run.slow:
        rows.append(("slow", run.slow))
    rows += [
        (
            f"csx {number}",
            f"computes for {format_share(wafer.computing)} of the time, "
            f"gets weights for {format_share(wafer.receiving)}",
        )
        for number, wafer in enumerate(run.wafers, 1)
    ]
    if not run.workers:
        return rows
    step = f"{run.step}, {format_rate(run.steps_per_s)} steps/s, {format_rate(run.samples_per_s)} samples/s"
    rows.append(("step", step if run.loss is None else f"{step}, loss {run.loss:.6g}"))
    connected = sum(worker.phase in ("connected", "ended") for worker in run.workers)
    text = f"{connected} of {len(run.workers)} connected"
    if run.waiting_for:
        text += "; waiting for " + ", ".join(
            f"worker {run.workers[index].worker} ({run.workers[index].phase})"
            for index in run.waiting_for
            if index < len(run.workers)
        )
    rows.append(("workers", text))
    if run.input_bound:
        rows.append(("input", f"input-bound: {format_share(run.input_wait)} of the time without a batch"))
    return rows


def _name_job(job: str, owner: str) -> str:
    return f"{job} of {owner}" if owner else job
