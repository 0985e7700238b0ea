"""The status of a CS system: as plain data, and as the text of `cs_system status`."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Any

from cs_system.address import SystemAddress, host_port
from cs_system.errors import clock_text
from cs_system.proto import cs_system_pb2 as pb


@dataclass(frozen=True)
class WorkerInfo:
    """A worker of the current run.

    Attributes:
        phase: absent, connected, lost, ended or failed.
        host: Name of its machine; empty before it has connected.
        batches: Number received from it in this run.
    """

    worker: int
    phase: str
    host: str
    batches: int


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


@dataclass(frozen=True)
class Limits:
    """Limits of the system, in bytes."""

    message_bytes: int
    artifact_bytes: int
    input_memory_bytes: int


@dataclass(frozen=True)
class SystemInfo:
    """A system.

    Attributes:
        version: Version of its toolkit.
        state: IDLE, RESERVED, PROGRAMMING, WAITING FOR INPUT or RUNNING.
        fabric: Name of the fabric's configuration.
        fabric_spec: The configuration itself, for `cs_toolkit.fabric.Fabric`.
        data_address: Address at which workers reach it.
        run: None when the system is idle.
        waiting_jobs: Number of jobs in the queue.
        num_csx: Number of wafers that can share a batch.
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

    def to_json(self) -> dict[str, Any]:
        """Return plain values with the names of the attributes."""
        return asdict(self)


def read_info(message: pb.SystemInfo, address: SystemAddress) -> SystemInfo:
    """Convert the answer of the system at `address`."""
    current = message.run
    run = RunInfo(
        job=current.job,
        since=current.since,
        step=current.step,
        steps_per_s=current.steps_per_s,
        samples_per_s=current.samples_per_s,
        workers=tuple(WorkerInfo(w.worker, w.phase, w.host, w.batches) for w in current.input.workers),
        waiting_for=tuple(current.input.waiting_for),
        late=current.late,
        slow=current.slow,
        wafers=tuple(WaferInfo(wafer.computing, wafer.receiving) for wafer in current.wafers),
    )
    return SystemInfo(
        name=message.name,
        version=message.version,
        address=str(address),
        state=message.state,
        fabric=message.fabric,
        fabric_spec=json.loads(message.fabric_json),
        data_address=host_port(message.data_host or address.host, message.data_port),
        uptime_s=message.uptime_s,
        waiting_jobs=message.waiting_jobs,
        run=run if message.HasField("run") else None,
        limits=Limits(
            message.limits.message_bytes, message.limits.artifact_bytes, message.limits.input_memory_bytes
        ),
        num_csx=message.num_csx or 1,
    )


def render(info: SystemInfo, now_s: float) -> str:
    """Render a system and its run as a few lines; `now_s` is in seconds since the epoch."""
    rows = [
        ("system", f"{info.name} at {info.address}, data plane {info.data_address}"),
        ("toolkit", f"{info.version}, fabric {info.fabric}, up {duration_text(info.uptime_s)}"),
        ("state", info.state),
    ]
    if info.num_csx > 1:
        rows.insert(1, ("wafers", str(info.num_csx)))
    if info.run is not None:
        rows += _run_rows(info.run, now_s)
    if info.waiting_jobs:
        rows.append(("queue", f"{info.waiting_jobs} job(s) waiting"))
    return "\n".join(f"{label:<8} {text}" for label, text in rows)


def _run_rows(run: RunInfo, now_s: float) -> list[tuple[str, str]]:
    rows = [("job", f"{run.job} since {clock_text(run.since)} ({duration_text(now_s - run.since)})")]
    if run.late:
        rows.append(("late", run.late))
    if run.slow:
        rows.append(("slow", run.slow))
    rows += [
        (
            f"csx {number}",
            f"computes for {wafer.computing:.0%} of the time, gets weights for {wafer.receiving:.0%}",
        )
        for number, wafer in enumerate(run.wafers, 1)
    ]
    if not run.workers:
        return rows
    rows.append(("step", f"{run.step}, {run.steps_per_s:,.1f} steps/s, {run.samples_per_s:,.0f} samples/s"))
    connected = sum(worker.phase in ("connected", "ended") for worker in run.workers)
    text = f"{connected} of {len(run.workers)} connected"
    if run.waiting_for:
        text += "; waiting for " + ", ".join(
            f"worker {run.workers[index].worker} ({run.workers[index].phase})" for index in run.waiting_for
        )
    return [*rows, ("workers", text)]


def duration_text(seconds: float) -> str:
    """Format a duration: `45 s`, `3 min 20 s`, `2 h 5 min`, `3 d 4 h`."""
    whole = max(0, int(seconds))
    days, rest = divmod(whole, 86400)
    hours, rest = divmod(rest, 3600)
    minutes, left = divmod(rest, 60)
    if days:
        return f"{days} d {hours} h"
    if hours:
        return f"{hours} h {minutes} min"
    return f"{minutes} min {left} s" if minutes else f"{left} s"
