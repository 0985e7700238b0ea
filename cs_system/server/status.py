"""The status of the system and its run, read from `System` and `Run` in the event loop."""

from __future__ import annotations

import json
import time

from cs_stream.receiver import RunStats
from cs_system.address import host_port
from cs_system.messages import MESSAGE_BYTES
from cs_system.monitoring.recorder import WorkerRates
from cs_system.server.artifacts import MAX_ARTIFACT_BYTES
from cs_system.server.chief import ChiefMonitor
from cs_system.server.reservations import Ticket
from cs_system.server.run import Run
from cs_system.server.system import System
from cs_system.status import (
    Limits,
    QueuedJob,
    RunInfo,
    SystemInfo,
    WaferInfo,
    WeightTraffic,
    WorkerInfo,
)
from cs_toolkit import __version__ as TOOLKIT_VERSION
from cs_toolkit.step import INPUT_BOUND_SHARE

SYSTEM_NAME = "CS system simulator"
_EVENTS = 20


def read_status(system: System, host: str = "", port: int = 0) -> SystemInfo:
    """Return the status; `host` and `port` are those of the control plane, for readers in this process."""
    options, (holder, run) = system.options, (system.book.holder, system.run)
    data_host = options.advertise or host
    return SystemInfo(
        name=SYSTEM_NAME,
        version=TOOLKIT_VERSION,
        address=host_port(host, port),
        state=system.state(),
        fabric=options.fabric,
        fabric_spec=json.loads(options.fabric_json),
        data_address=host_port(data_host, system.receiver.address[1]),
        uptime_s=time.monotonic() - system.started_s,
        waiting_jobs=len(system.book.waiting),
        run=None if holder is None or run is None else _read_run(holder, run, system.chief),
        limits=Limits(MESSAGE_BYTES, MAX_ARTIFACT_BYTES, options.limits.input_memory_bytes),
        num_csx=options.wafers,
        queue=tuple(QueuedJob(job.job, job.owner, job.entered_s) for job in system.book.waiting),
        events=system.events.last(_EVENTS),
        wafer_s=system.wafer_s(),
        admission=system.admission,
    )


def read_workers(run: Run, stats: RunStats) -> tuple[WorkerInfo, ...]:
    """Return the status of the workers; `stats` is `run.input_stats()`."""
    # A run that has just been opened has no rates yet.
    rates = run.recorder.rates().workers or (WorkerRates(),) * len(stats.workers)
    return tuple(
        WorkerInfo(
            worker.worker,
            worker.phase.value,
            worker.host,
            worker.batches,
            worker.size_bytes,
            worker.queued,
            max(0, worker.connects - 1),
            worker.last_error,
            rate.batches_per_s,
            rate.bytes_per_s,
            rate.credit_wait,
            rate.input_wait,
        )
        for worker, rate in zip(stats.workers, rates, strict=True)
    )


def _read_run(holder: Ticket, run: Run, chief: ChiefMonitor | None) -> RunInfo:
    monitor, program = run.stragglers(), run.program
    rates, totals, stats = run.recorder.rates(), run.totals(), run.input_stats()
    streams = program is not None and bool(program.schedule)
    return RunInfo(
        job=holder.job,
        since=holder.since_s,
        step=run.progress.step,
        steps_per_s=run.progress.rate.per_s(),
        samples_per_s=run.samples_per_s(),
        workers=() if stats is None else read_workers(run, stats),
        waiting_for=() if stats is None else run.waiting_for(stats),
        late=run.unresponsive() or "",
        slow=(monitor and monitor.straggler()) or "",
        wafers=tuple(
            WaferInfo(share.computing, share.receiving) for share in (monitor and monitor.utilization()) or ()
        ),
        owner=holder.owner,
        artifact="" if program is None else program.key,
        execution="" if program is None else program.execution,
        wafers_used=run.share.wafers,
        bound_by=() if run.floorplan is None else run.floorplan.bound_by,
        loss=run.recorder.loss,
        samples=totals.samples,
        input_bytes_per_s=rates.input_bytes_per_s,
        input_wait=rates.input_wait,
        input_bound=rates.input_wait > INPUT_BOUND_SHARE,
        weights=WeightTraffic(
            totals.to_wafer_bytes,
            totals.to_memory_bytes,
            rates.to_wafer_bytes_per_s,
            rates.to_memory_bytes_per_s,
        )
        if streams
        else None,
        activity="" if chief is None else chief.activity,
        idle_s=0.0 if chief is None else chief.idle_s(time.monotonic()),
    )
