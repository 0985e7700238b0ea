"""Measure the throughput of copies that run in parallel: first a single one, then more and more."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace

from csrun.jobs.layout import pin_cpus
from input_analyzer.analysis import Measurement
from input_analyzer.measure import node
from input_analyzer.measure.copies import Copies, Launch
from input_analyzer.measure.link import PAUSE, RUN, Order
from input_analyzer.measure.statistics import Count, SteadyRate, steady_rate

FEWEST_BATCHES = 10
_LONGER_FOR_SLOW = 4
_CHECK_S = 0.2
_SHORTEST_EPOCH_S = 0.3  # shorter epochs have no rate
# Consecutive checks at which the interval must be narrow: an interval that is checked repeatedly is
# narrow by chance at some time.
_NARROW_CHECKS = 3


@dataclass(frozen=True, slots=True)
class Effort:
    """The time for a measurement.

    Attributes:
        shortest_s: minimum time.
        longest_s: maximum time; four times that if batches are so slow that there are too few.
        half_width: a measurement stops when half of the confidence interval is this fraction of the rate.
    """

    shortest_s: float = 1.0
    longest_s: float = 4.0
    half_width: float = 0.05


@dataclass(frozen=True, slots=True)
class Plan:
    """Measurements with `cpus_per_task` CPUs per copy: `counts` of them run at a time."""

    cpus_per_task: int
    counts: tuple[int, ...]

    @property
    def most(self) -> int:
        """Number of processes."""
        return max(self.counts)


def plans(
    cpus: int,
    cpus_per_task: Sequence[int],
    memory_bytes: int,
    copy_bytes: int,
    most_workers: int | None = None,
) -> tuple[Plan, ...]:
    """Plan the measurements on a node: 1, 2, 4, ... copies, and as many as fit by CPUs and memory.

    There are no more than `most_workers` copies, if further ones would have nothing to read.
    """
    found = []
    for each in cpus_per_task:
        by_memory = memory_bytes // copy_bytes if copy_bytes else cpus
        most = max(1, min(cpus // each, by_memory, most_workers or cpus))
        counts = sorted({most, *(2**power for power in range(most.bit_length()) if 2**power <= most)})
        found.append(Plan(each, tuple(counts)))
    return tuple(found)


@dataclass(frozen=True, slots=True)
class _ReadingState:
    """The samples that a copy had delivered, and its seconds of reading."""

    samples: float
    active_s: float


_NOTHING_READ = _ReadingState(0.0, 0.0)

# Receives the current activity and the completed fraction of the current step.
Progress = Callable[[str, float], None]


@dataclass
class _CopyReports:
    """The reports of a copy since the beginning of a phase.

    Attributes:
        epoch_samples: size of its first epoch; None: unknown, or the epoch is over.
        first: state at its first samples.
        epoch_end: state at the end of its first epoch.
        passed_epoch_at: time of the report after that end.
    """

    epoch_samples: int | None
    counts: list[Count] = field(default_factory=list)
    bytes: list[int] = field(default_factory=list)
    batches: list[int] = field(default_factory=list)
    first: _ReadingState | None = None
    epoch_end: _ReadingState | None = None
    passed_epoch_at: float | None = None
    last: _ReadingState = _NOTHING_READ
    restarts: int = 0

    def add(self, report: dict[str, float]) -> None:
        now, before = _ReadingState(report["samples"], report["active"]), self.last
        self.counts.append(Count(report["t"], now.samples))
        self.bytes.append(int(report["bytes"]))
        self.batches.append(int(report["batches"]))
        self.restarts = int(report["restarts"])
        if self.first is None and now.samples:
            self.first = now
        if self.passed_epoch_at is None:
            # Before an input restarts, it reports its end.
            self.epoch_end = before if self.restarts else self._epoch_passed(before, now)
            self.passed_epoch_at = None if self.epoch_end is None else report["t"]
        self.last = now

    def _epoch_passed(self, before: _ReadingState, now: _ReadingState) -> _ReadingState | None:
        """Interpolate the end of the epoch between two reports; None if it did not end."""
        if self.epoch_samples is None or now.samples < self.epoch_samples:
            return None
        part = (self.epoch_samples - before.samples) / max(1.0, now.samples - before.samples)
        return _ReadingState(self.epoch_samples, before.active_s + part * (now.active_s - before.active_s))

    def first_epoch(self, disk_bytes: int | None, *, cold: bool) -> tuple[float | None, float | None]:
        """Return the samples per second of a single copy's first epoch, and bytes per sample from disks.

        Args:
            disk_bytes: bytes that were read from disks in the meantime, all in the first epoch; None if the
                kernel does not report it.
            cold: files were cold at the beginning: an epoch that has not ended counts as far as it was
                measured.

        Returns:
            None for values that are unknown, or if the epoch was too short.
        """
        end = self.epoch_end or (self.last if cold else None)
        if self.first is None or end is None:
            return None, None
        elapsed_s = end.active_s - self.first.active_s
        rate = (end.samples - self.first.samples) / elapsed_s if elapsed_s > _SHORTEST_EPOCH_S else None
        return rate, None if disk_bytes is None else disk_bytes / end.samples

    @property
    def begun(self) -> bool:
        """True if a batch arrived since the phase began."""
        return len(self.batches) > 1 and self.batches[-1] > self.batches[0]


@dataclass
class Stop:
    """Decides when a measurement ends; is asked at every check of the rate."""

    effort: Effort
    _narrow: int = 0

    def now(self, rate: SteadyRate, elapsed_s: float, *, enough: bool) -> bool:
        """Return True if the interval is reliably narrow, or the time is over.

        Args:
            rate: the current estimate.
            elapsed_s: seconds since the beginning of the measurement.
            enough: all copies have delivered enough batches for an interval.
        """
        tight = enough and rate.settled and rate.relative_half_width <= self.effort.half_width
        self._narrow = self._narrow + 1 if tight else 0
        longest_s = self.effort.longest_s * (1 if enough else _LONGER_FOR_SLOW)
        return self._narrow >= _NARROW_CHECKS or elapsed_s >= longest_s


@dataclass(frozen=True, slots=True)
class _Clocks:
    """Resources used, and samples read, up to a time."""

    time_s: float
    cpu_s: float
    busy_s: float
    samples: float


def _fewest_batches(series: Iterable[_CopyReports]) -> int:
    """Return the number of batches of the slowest copy."""
    return min(one.batches[-1] - one.batches[0] for one in series)


class Rates:
    """Measures a group of copies; `restarts` and `epoch_ended` record ends of the input.

    With `make_cold`, files are dropped from the page cache before the first measurement, and before the
    others as long as no copy has reached the end of its first epoch: if that takes longer than a measurement,
    a training run reads cold files, too.
    """

    def __init__(
        self,
        effort: Effort,
        epoch_samples: int | None,
        cpus: tuple[int, ...],
        make_cold: Callable[[Callable[[str], None]], None] | None = None,
    ) -> None:
        self._effort = effort
        self._epoch_samples = epoch_samples
        self._cpus = cpus
        self.restarts = 0
        self._make_cold = make_cold
        self.epoch_ended = epoch_samples is None and make_cold is None
        self._epoch_passed: dict[int, bool] = {}

    def measure(self, launch: Launch, plan: Plan, progress: Progress) -> Iterator[Measurement]:
        """Yield a measurement for each of the plan's counts."""
        pins = pin_cpus(plan.most, plan.cpus_per_task, self._cpus)
        orders = [
            Order(purpose="copy", socket="", copy_index=index, copies=plan.most) for index in range(plan.most)
        ]
        self._epoch_passed = {}
        with Copies(launch, orders, pins) as copies:
            ready: set[int] = set()
            while len(ready) < len(copies.all):
                for copy, message in copies.messages():
                    if message["event"] == "ready":
                        ready.add(copy.index)
                        copy.must_report = False
                progress("starting the program", 0.3 * len(ready) / len(copies.all))
            for count in plan.counts:
                cold = self._make_cold is not None and not self.epoch_ended
                if cold and self._make_cold is not None:
                    self._make_cold(lambda doing: progress(doing, 0.0))
                found = self._measure_in_parallel(copies, count, plan.cpus_per_task, progress, cold=cold)
                yield replace(found, pinned=bool(pins), cold=cold)

    def _measure_in_parallel(
        self, copies: Copies, count: int, cpus_per_task: int, progress: Progress, *, cold: bool
    ) -> Measurement:
        running = copies.all[:count]
        series = {
            copy.index: _CopyReports(None if self._epoch_passed.get(copy.index) else self._epoch_samples)
            for copy in running
        }
        read_before = copies.disk_bytes(running[0])
        for copy in running:
            copy.last_message_at, copy.must_report = time.monotonic(), True
            copy.send_command(RUN)
        began = time.monotonic()
        rate, start, before = self._measure_until_narrow(copies, series, progress)
        batches = _fewest_batches(series.values())
        after = self._clocks(copies, series)
        for copy in running:
            copy.send_command(PAUSE)
        read = copies.disk_bytes(running[0])
        waiting = {copy.index for copy in running}
        while waiting:
            for copy, message in copies.messages():
                if message["event"] == "paused":
                    waiting.discard(copy.index)
                    copy.must_report = False
        epoch_rate = epoch_bytes = None
        if count == 1:
            disk_bytes = None if read is None or read_before is None else read - read_before
            epoch_rate, epoch_bytes = series[0].first_epoch(disk_bytes, cold=cold)
        for index, one in series.items():
            if one.passed_epoch_at is not None:
                self._epoch_passed[index] = self.epoch_ended = True
            self.restarts = max(self.restarts, one.restarts)
        samples = after.samples - before.samples
        cpu_s, elapsed_s = after.cpu_s - before.cpu_s, after.time_s - before.time_s
        received = sum(one.counts[-1].samples - one.counts[0].samples for one in series.values())
        size = sum(one.bytes[-1] - one.bytes[0] for one in series.values())
        return Measurement(
            tasks=count,
            cpus_per_task=cpus_per_task,
            samples_per_s=rate.samples_per_s,
            low=rate.low,
            high=rate.high,
            settled=batches >= FEWEST_BATCHES
            and rate.settled
            and rate.relative_half_width <= self._effort.half_width,
            batches=batches,
            warm_up_s=start - began + rate.warm_up_s,
            first_epoch_samples_per_s=epoch_rate,
            first_epoch_disk_bytes_per_sample=epoch_bytes,
            cpu_us_per_sample=1e6 * cpu_s / samples if samples else None,
            bytes_per_sample=size / received if received else 0.0,
            memory_per_task_bytes=max(copy.peak_bytes for copy in running),
            other_cpus=max(0.0, (after.busy_s - before.busy_s - cpu_s) / elapsed_s),
        )

    def _clocks(self, copies: Copies, series: dict[int, _CopyReports]) -> _Clocks:
        samples = sum(one.counts[-1].samples for one in series.values() if one.counts)
        return _Clocks(time.monotonic(), copies.cpu_s(), node.busy_cpu_s(self._cpus), samples)

    def _measure_until_narrow(
        self, copies: Copies, series: dict[int, _CopyReports], progress: Progress
    ) -> tuple[SteadyRate, float, _Clocks]:
        """Return the rate, the time from which it was measured, and the clocks at that time."""
        effort = self._effort
        start: float | None = None
        before = self._clocks(copies, series)
        looked, stop = 0.0, Stop(effort)
        while True:
            for copy, message in copies.messages():
                if message["event"] in ("report", "paused") and copy.index in series:
                    series[copy.index].add(message)
            if not all(one.begun for one in series.values()):
                progress("waiting for the first batches", 0.3)
                continue
            # All copies run, and are past a first epoch that is short.
            since = max(one.counts[1].t for one in series.values()) if start is None else start
            passed = [one.passed_epoch_at for one in series.values() if one.passed_epoch_at is not None]
            since = max([since, *passed])
            if since != start:
                start, before = since, self._clocks(copies, series)
            end = min(one.counts[-1].t for one in series.values())
            now = time.monotonic()
            progress("measuring", 0.4 + 0.6 * min(1.0, (now - start) / effort.longest_s))
            if end - start < effort.shortest_s or now - looked < _CHECK_S:
                continue
            looked = now
            rate = steady_rate([one.counts for one in series.values()], start, end)
            enough = _fewest_batches(series.values()) >= FEWEST_BATCHES
            if not stop.now(rate, end - start, enough=enough):
                continue
            # If a cold first epoch is about to end, later ones can still be measured.
            first, left_s = series[0], effort.longest_s - (end - start)
            if (
                self._make_cold is None
                or first.epoch_samples is None
                or first.epoch_end is not None
                or first.epoch_samples - first.last.samples >= left_s * rate.samples_per_s
            ):
                return rate, start, before
