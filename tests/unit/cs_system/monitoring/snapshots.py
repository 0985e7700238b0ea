"""A snapshot of a system in the middle of a run, for the tests of its page and metrics."""

from __future__ import annotations

from dataclasses import replace

from cs_system.monitoring.board import Snapshot
from cs_system.monitoring.recorder import CurvePoint, Totals
from cs_system.status import (
    Event,
    Limits,
    QueuedJob,
    RunInfo,
    SystemInfo,
    WaferInfo,
    WeightTraffic,
    WorkerInfo,
)
from cs_toolkit.floorplan import Floorplan, PlacedKernel

NOW = 1_800_000_000.0

RUN = RunInfo(
    job="job-7",
    since=NOW - 90,
    step=1200,
    steps_per_s=2140.25,
    samples_per_s=547_904.0,
    workers=(
        WorkerInfo(0, "connected", "node1", 700, 7_000_000, 16, 0, "", 70.0, 7e5, 0.9, 0.0),
        WorkerInfo(1, "lost", "node2", 500, 5_000_000, 0, 2, "the connection was reset", 50.0, 5e5, 0.0, 0.4),
    ),
    waiting_for=(1,),
    wafers=(WaferInfo(0.5, 0.25), WaferInfo(0.25, 0.125)),
    owner="ada@login1",
    artifact="ab" * 32,
    execution="weight_streaming",
    wafers_used=2,
    bound_by=("fc1",),
    loss=0.25,
    samples=307_200,
    input_bytes_per_s=1.2e6,
    input_wait=0.4,
    input_bound=True,
    weights=WeightTraffic(10_000, 4000, 1000.0, 400.0),
)

INFO = SystemInfo(
    name="CS system simulator",
    version="0.2.0",
    address="127.0.0.1:9000",
    state="RUNNING",
    fabric="cs2",
    fabric_spec={},
    data_address="127.0.0.1:9001",
    uptime_s=7200.0,
    waiting_jobs=1,
    run=RUN,
    limits=Limits(1, 2, 3),
    num_csx=2,
    queue=(QueuedJob("job-8", "bob@login2", NOW - 30),),
    events=(Event(NOW - 1, "INFO", "job-7", "reserved"), Event(NOW, "WARNING", "", "worker 1 is lost")),
    wafer_s=3600.0,
)

PLAN = Floorplan(
    part="",
    width=740,
    height=416,
    kernels=(PlacedKernel("fc1", 10, 10, 100, 50, 1.0), PlacedKernel("relu", 10, 60, 100, 5, 0.25)),
    copies=((200, 0),),
    bound_by=("fc1",),
    reason="compute",
    samples_per_s=1.25e6,
)

CURVE = tuple(CurvePoint(NOW - 90 + second, 10 * second, 10.0, 2.0 / (1 + second)) for second in range(90))

SNAPSHOT = Snapshot(
    NOW, INFO, Totals(5000, 1_280_000, 5000, 50_000_000, 12.5, 10_000, 4000), 3, CURVE, PLAN, NOW + 86_400
)
IDLE = Snapshot(NOW, replace(INFO, state="IDLE", run=None, queue=(), events=()), Totals(), 0)
