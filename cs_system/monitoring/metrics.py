"""The figures of a system as metrics for Prometheus, with names and base units by its conventions."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, InfoMetricFamily, Metric
from prometheus_client.registry import Collector

from cs_system.monitoring.board import Snapshot
from cs_system.status import RunInfo, WorkerInfo

STATES = ("IDLE", "DRAINED", "RESERVED", "PROGRAMMING", "WAITING FOR INPUT", "RUNNING")
# A label per worker stays bounded whatever jobs ask for; a system with more workers has the sums only.
MAX_WORKERS = 256


def make_registry(latest: Callable[[], Snapshot]) -> CollectorRegistry:
    """Return a registry with the metrics of the system and of its process."""
    registry = CollectorRegistry()
    registry.register(_SystemCollector(latest))
    ProcessCollector(registry=registry)
    return registry


class _SystemCollector(Collector):
    """Makes all metrics from one snapshot, so that those of a scrape fit together."""

    def __init__(self, latest: Callable[[], Snapshot]) -> None:
        self._latest = latest

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics."""
        snapshot = self._latest()
        yield from _system_metrics(snapshot)
        run = snapshot.info.run
        if run is not None:
            yield from _run_metrics(run)
            yield from _worker_metrics(run.workers[:MAX_WORKERS])


def _system_metrics(snapshot: Snapshot) -> Iterator[Metric]:
    info, totals = snapshot.info, snapshot.totals
    about = InfoMetricFamily("cs_system", "Version of the toolkit and fabric of the system.")
    about.add_metric([], {"version": info.version, "fabric": info.fabric})
    yield about
    state = GaugeMetricFamily(
        "cs_system_state", "1 for the state of the system, 0 for others.", labels=["state"]
    )
    for name in STATES:
        state.add_metric([name.lower().replace(" ", "_")], float(info.state == name))
    yield state
    yield _gauge(
        "cs_system_start_time_seconds",
        "Start of the system, in seconds since the epoch.",
        snapshot.time - info.uptime_s,
    )
    if snapshot.certificate_end is not None:
        yield _gauge(
            "cs_system_certificate_expiry_timestamp_seconds",
            "End of the certificate, in seconds since the epoch.",
            snapshot.certificate_end,
        )
    yield _gauge("cs_system_queued_jobs", "Jobs that wait for the system.", info.waiting_jobs)
    yield _gauge("cs_system_wafers", "Wafers of the system.", info.num_csx)
    yield _counter("cs_system_reservations", "Reservations that jobs got.", snapshot.reservations)
    yield _counter(
        "cs_system_wafer_seconds", "Time of reservations, times the wafers that they used.", info.wafer_s
    )
    yield _counter("cs_system_steps", "Steps computed.", totals.steps)
    yield _counter("cs_system_samples", "Samples in these steps.", totals.samples)
    yield _counter("cs_system_input_batches", "Batches received from workers.", totals.batches)
    yield _counter("cs_system_input_bytes", "Payload of these batches.", totals.size_bytes)
    yield _counter(
        "cs_system_input_wait_seconds", "Time that the device lacked a batch.", totals.input_wait_s
    )
    traffic = CounterMetricFamily(
        "cs_system_memoryx_bytes", "Transfers between wafer and MemoryX.", labels=["direction"]
    )
    traffic.add_metric(["to_wafer"], totals.to_wafer_bytes)
    traffic.add_metric(["to_memoryx"], totals.to_memory_bytes)
    yield traffic


def _run_metrics(run: RunInfo) -> Iterator[Metric]:
    yield _gauge(
        "cs_system_run_start_time_seconds",
        "When the current job got the system, in seconds since the epoch.",
        run.since,
    )
    yield _gauge("cs_system_run_step", "Global step of the current run.", run.step)
    if run.loss is not None:
        yield _gauge("cs_system_run_loss", "Loss of its last step.", run.loss)
    yield _gauge(
        "cs_system_run_input_wait_ratio",
        "Part of the last seconds in which the device lacked a batch.",
        run.input_wait,
    )
    yield _gauge(
        "cs_system_run_input_bound", "1 if the current run waits for its input.", float(run.input_bound)
    )
    yield _gauge("cs_system_run_wafers", "Wafers that share a batch of the current run.", run.wafers_used)
    yield _gauge(
        "cs_system_run_late", "1 if a part of the system has not answered for seconds.", float(bool(run.late))
    )


def _worker_metrics(workers: Iterable[WorkerInfo]) -> Iterator[Metric]:
    labels = ["worker"]
    figures: list[tuple[GaugeMetricFamily | CounterMetricFamily, Callable[[WorkerInfo], float]]] = [
        (
            GaugeMetricFamily(
                "cs_system_worker_connected", "1 if the worker is connected, or has sent all.", labels=labels
            ),
            lambda worker: float(worker.phase in ("connected", "ended")),
        ),
        (
            CounterMetricFamily(
                "cs_system_worker_batches", "Batches of the worker in the current run.", labels=labels
            ),
            lambda worker: worker.batches,
        ),
        (
            CounterMetricFamily("cs_system_worker_bytes", "Payload of these batches.", labels=labels),
            lambda worker: worker.size_bytes,
        ),
        (
            CounterMetricFamily(
                "cs_system_worker_reconnects", "Connections of the worker after its first.", labels=labels
            ),
            lambda worker: worker.reconnects,
        ),
        (
            GaugeMetricFamily(
                "cs_system_worker_queue_batches", "Its batches that wait to be computed on.", labels=labels
            ),
            lambda worker: worker.queue,
        ),
        (
            GaugeMetricFamily(
                "cs_system_worker_credit_wait_ratio",
                "Part of the last seconds in which the worker waited for the system.",
                labels=labels,
            ),
            lambda worker: worker.credit_wait,
        ),
        (
            GaugeMetricFamily(
                "cs_system_worker_input_wait_ratio",
                "Part of the last seconds in which the system waited for the worker.",
                labels=labels,
            ),
            lambda worker: worker.input_wait,
        ),
    ]
    for worker in workers:
        for family, value in figures:
            family.add_metric([str(worker.worker)], value(worker))
    for family, _ in figures:
        if family.samples:
            yield family


def _gauge(name: str, text: str, value: float) -> Metric:
    return GaugeMetricFamily(name, text, value=value)


def _counter(name: str, text: str, value: float) -> Metric:
    return CounterMetricFamily(name, text, value=value)
