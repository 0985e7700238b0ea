"""Rates of copies that run side by side: first one alone, then more and more of them."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace

from csrun.jobs.layout import pin_cpus
from input_analyzer.analysis import Measurement
from input_analyzer.measure import node
from input_analyzer.measure.copies import Copies, Copy, Launch
from input_analyzer.measure.link import PAUSE, RUN, Order
from input_analyzer.measure.statistics import Count, SteadyRate, steady_rate

FEWEST_BATCHES = 10
_LONGER_FOR_SLOW = 4
_LOOK_S = 0.2
_SHORTEST_EPOCH_S = 0.3  # what is over sooner has no rate
_LOOKS = 3
"""So often in a row the interval must be tight: one that is looked at often enough is so by chance."""


@dataclass(frozen=True, slots=True)
class Effort:
    """How long a measurement may take.

    Attributes:
        shortest_s: at least so long.
        longest_s: at most so long; four times that where batches come so slowly that there are too few.
        half_width: it stops when half of the confidence interval is that part of the rate.
    """

    shortest_s: float = 1.0
    longest_s: float = 4.0
    half_width: float = 0.05


@dataclass(frozen=True, slots=True)
class Plan:
    """Copies with `cpus_per_task` CPUs each: `most` are started, and so many run at a time."""

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
    """What to measure on a node: 1, 2, 4, ... copies and as many as fit by CPUs and memory.

    Where only so many workers have something to read (`most_workers`), there are no more copies than that.
    """
    found = []
    for each in cpus_per_task:
        by_memory = memory_bytes // copy_bytes if copy_bytes else cpus
        most = max(1, min(cpus // each, by_memory, most_workers or cpus))
        counts = sorted({most, *(2**power for power in range(most.bit_length()) if 2**power <= most)})
        found.append(Plan(each, tuple(counts)))
    return tuple(found)


@dataclass(frozen=True, slots=True)
class _Look:
    """Samples that a copy had delivered by a certain time, and its seconds of reading."""

    samples: float
    active_s: float


_NOTHING = _Look(0.0, 0.0)

Progress = Callable[[str, float], None]
"""Is told what is being done, and what part of the present step."""


@dataclass
class _Series:
    """What one copy has reported since a phase began.

    Attributes:
        epoch_samples: size of its first epoch; None: not known, or it is over.
        first: at its first samples.
        epoch_end: when its first epoch ended.
        passed_epoch_at: time of the report that told so.
    """

    epoch_samples: int | None
    counts: list[Count] = field(default_factory=list)
    bytes: list[int] = field(default_factory=list)
    batches: list[int] = field(default_factory=list)
    first: _Look | None = None
    epoch_end: _Look | None = None
    passed_epoch_at: float | None = None
    last: _Look = _NOTHING
    restarts: int = 0

    def add(self, report: dict[str, float]) -> None:
        now, before = _Look(report["samples"], report["active"]), self.last
        self.counts.append(Count(report["t"], now.samples))
        self.bytes.append(int(report["bytes"]))
        self.batches.append(int(report["batches"]))
        self.restarts = int(report["restarts"])
        if self.first is None and now.samples:
            self.first = now
        if self.passed_epoch_at is None:
            # Before an input begins again it reports where it has ended.
            self.epoch_end = before if self.restarts else self._passed(before, now)
            self.passed_epoch_at = None if self.epoch_end is None else report["t"]
        self.last = now

    def _passed(self, before: _Look, now: _Look) -> _Look | None:
        """When the epoch ended between two reports; None where it did not."""
        if self.epoch_samples is None or now.samples < self.epoch_samples:
            return None
        part = (self.epoch_samples - before.samples) / max(1.0, now.samples - before.samples)
        return _Look(self.epoch_samples, before.active_s + part * (now.active_s - before.active_s))

    def first_epoch(self, disk_bytes: int | None, *, cold: bool) -> tuple[float | None, float | None]:
        """Samples per second of the first epoch of a copy that was alone, and bytes per sample from disks.

        Args:
            disk_bytes: that were read from disks meanwhile, none of them behind the first epoch; None where
                the kernel does not tell.
            cold: files were, at its begin: of an epoch that has not ended all that was measured counts.

        Returns:
            None for what is not known, or was over in no time.
        """
        end = self.epoch_end or (self.last if cold else None)
        if self.first is None or end is None:
            return None, None
        elapsed_s = end.active_s - self.first.active_s
        rate = (end.samples - self.first.samples) / elapsed_s if elapsed_s > _SHORTEST_EPOCH_S else None
        return rate, None if disk_bytes is None else disk_bytes / end.samples

    @property
    def begun(self) -> bool:
        """Whether a batch came since the phase began."""
        return len(self.batches) > 1 and self.batches[-1] > self.batches[0]


@dataclass
class Stop:
    """When a measurement ends. Is asked again and again, at every look at the rate."""

    effort: Effort
    _tight: int = 0

    def now(self, rate: SteadyRate, elapsed_s: float, *, enough: bool) -> bool:
        """Whether the interval is tight for good, or the time is over.

        Args:
            rate: as it is known now.
            elapsed_s: since the begin of the measurement.
            enough: all copies have delivered enough batches for an interval.
        """
        tight = enough and rate.settled and rate.relative_half_width <= self.effort.half_width
        self._tight = self._tight + 1 if tight else 0
        longest_s = self.effort.longest_s * (1 if enough else _LONGER_FOR_SLOW)
        return self._tight >= _LOOKS or elapsed_s >= longest_s


@dataclass(frozen=True, slots=True)
class _Clocks:
    """What had been spent, and read, at a time."""

    time_s: float
    cpu_s: float
    busy_s: float
    samples: float


def _fewest_batches(series: Iterable[_Series]) -> int:
    """Batches that the slowest copy has delivered."""
    return min(one.batches[-1] - one.batches[0] for one in series)


class Rates:
    """Measures one group of copies; `restarts` and `epoch_ended` are what it saw of the input's end.

    With `make_cold`, which drops files from the memory, they are dropped before the first measurement, and
    before the others as long as no copy has come to the end of its first epoch: who does not come to it in a
    measurement reads files that are cold in a training too.
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
        self._passed: dict[int, bool] = {}

    def measure(self, launch: Launch, plan: Plan, progress: Progress) -> Iterator[Measurement]:
        """One measurement for each of the plan's counts."""
        pins = pin_cpus(plan.most, plan.cpus_per_task, self._cpus)
        orders = [
            Order(purpose="copy", socket="", copy_index=index, copies=plan.most) for index in range(plan.most)
        ]
        self._passed = {}
        with Copies(launch, orders, pins) as copies:
            self._wait_for_all(copies, progress)
            for count in plan.counts:
                cold = self._make_cold is not None and not self.epoch_ended
                if cold and self._make_cold is not None:
                    self._make_cold(lambda doing: progress(doing, 0.0))
                found = self._side_by_side(copies, count, plan.cpus_per_task, progress, cold=cold)
                yield replace(found, pinned=bool(pins), cold=cold)

    def _wait_for_all(self, copies: Copies, progress: Progress) -> None:
        ready: set[int] = set()
        while len(ready) < len(copies.all):
            for copy, message in copies.messages():
                if message["event"] == "ready":
                    ready.add(copy.index)
                    copy.must_report = False
            progress("starting the program", 0.3 * len(ready) / len(copies.all))

    def _side_by_side(
        self, copies: Copies, count: int, cpus_per_task: int, progress: Progress, *, cold: bool
    ) -> Measurement:
        running = copies.all[:count]
        series = {copy.index: _Series(self._epoch_of(copy)) for copy in running}
        read_before = copies.disk_bytes(running[0])
        for copy in running:
            copy.last_message_at, copy.must_report = time.monotonic(), True
            copy.send_command(RUN)
        began = time.monotonic()
        rate, start, before = self._until_tight(copies, series, progress)
        batches = _fewest_batches(series.values())
        after = self._clocks(copies, series)
        for copy in running:
            copy.send_command(PAUSE)
        read = copies.disk_bytes(running[0])
        self._wait_for_pause(copies, running)
        epoch_rate = epoch_bytes = None
        if count == 1:
            disk_bytes = None if read is None or read_before is None else read - read_before
            epoch_rate, epoch_bytes = series[0].first_epoch(disk_bytes, cold=cold)
        self._remember(series)
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

    def _clocks(self, copies: Copies, series: dict[int, _Series]) -> _Clocks:
        samples = sum(one.counts[-1].samples for one in series.values() if one.counts)
        return _Clocks(time.monotonic(), copies.cpu_s(), node.busy_cpu_s(self._cpus), samples)

    def _epoch_of(self, copy: Copy) -> int | None:
        return None if self._passed.get(copy.index) else self._epoch_samples

    def _remember(self, series: dict[int, _Series]) -> None:
        for index, one in series.items():
            if one.passed_epoch_at is not None:
                self._passed[index] = True
                self.epoch_ended = True
            self.restarts = max(self.restarts, one.restarts)

    def _until_tight(
        self, copies: Copies, series: dict[int, _Series], progress: Progress
    ) -> tuple[SteadyRate, float, _Clocks]:
        """The rate, from when on it was measured, and the clocks at that time."""
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
            since = self._start(series, start)
            if since != start:
                start, before = since, self._clocks(copies, series)
            end = min(one.counts[-1].t for one in series.values())
            now = time.monotonic()
            progress("measuring", 0.4 + 0.6 * min(1.0, (now - start) / effort.longest_s))
            if end - start < effort.shortest_s or now - looked < _LOOK_S:
                continue
            looked = now
            rate = steady_rate([one.counts for one in series.values()], start, end)
            enough = _fewest_batches(series.values()) >= FEWEST_BATCHES
            left_s = effort.longest_s - (end - start)
            if stop.now(rate, end - start, enough=enough) and not self._ends_soon(series[0], rate, left_s):
                return rate, start, before

    def _ends_soon(self, one: _Series, rate: SteadyRate, within_s: float) -> bool:
        """Whether a first epoch with cold files is about to end, so that later ones can be measured too."""
        if self._make_cold is None or one.epoch_samples is None or one.epoch_end is not None:
            return False
        return one.epoch_samples - one.last.samples < within_s * rate.samples_per_s

    def _start(self, series: dict[int, _Series], start: float | None) -> float:
        """From when on counts are used: all copies run, and have left their first epoch where it is short."""
        if start is None:
            start = max(one.counts[1].t for one in series.values())
        passed = [one.passed_epoch_at for one in series.values() if one.passed_epoch_at is not None]
        return max([start, *passed])

    def _wait_for_pause(self, copies: Copies, running: Sequence[Copy]) -> None:
        waiting = {copy.index for copy in running}
        while waiting:
            for copy, message in copies.messages():
                if message["event"] == "paused":
                    waiting.discard(copy.index)
                    copy.must_report = False
