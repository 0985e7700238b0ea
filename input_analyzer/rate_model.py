"""The rate of one node against the number of its tasks and their CPUs, fitted to measurements. Pure.

n copies with c CPUs each deliver

    X(n, c) = n / (t(c) * (1 + sigma * (n - 1) + kappa * n * (n - 1)))        samples per second
    t(c)    = (serial**k + (parallel / c)**k) ** (1 / k)                      seconds per sample of one copy

The second factor is the universal scalability law (N. J. Gunther, "Guerrilla Capacity Planning", 2007,
chapter 4): sigma is the share of time for which copies queue for what only one can use (disk, memory bus),
kappa what they cost each other pairwise (caches, coherency). t(c) is Amdahl's law for k = 1, and for larger k
the law of stages that overlap: `serial` is the pace of the stage that does not profit from more CPUs,
`parallel` the CPU time of the rest. All parameters are at least 0, so that no fit promises more than n times
one copy. Where one number of CPUs was measured, what more of them give is taken from the times of the stages
(`pace`), if they are known: then k is infinite, as the slower of the two parts alone counts.

That is so where one thread does what is slowest. Several, the worker processes of a torch DataLoader for
instance, meet at the CPUs although there is CPU time to spare: t(c) then is that of a closed queue
(`input_rules.throughput`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from input_rules.throughput import SampleTime, queueing_time

OVERLAPS = (1.0, 2.0, 4.0, 8.0)
"""Values that are tried for k; at 8 the slower of the two parts alone counts, within 9 %."""

_ROUNDS = 100
_CONVERGED = 1e-10
# What a parameter more must improve the squared error by to be believed.
_WORTH_A_PARAMETER = 0.5


@dataclass(frozen=True, slots=True)
class Point:
    """A measurement: `tasks` copies with `cpus_per_task` CPUs each delivered `samples_per_s` together.

    Attributes:
        cpu_s: CPU time of a sample, seconds; None where it is not known.
    """

    tasks: int
    cpus_per_task: int
    samples_per_s: float
    cpu_s: float | None = None


@dataclass(frozen=True, slots=True)
class RateModel:
    """The fitted parameters of the module's formula.

    Attributes:
        serial_s: seconds per sample that more CPUs do not shorten.
        parallel_s: CPU seconds per sample that they do.
        overlap: k.
        sigma: queueing, 0 or more.
        kappa: mutual cost, 0 or more.
        relative_error: root mean square of (predicted - measured) / measured.
        threads: that do what takes `serial_s`, where k is infinite; several of them queue for CPUs.
    """

    serial_s: float
    parallel_s: float
    overlap: float = 1.0
    sigma: float = 0.0
    kappa: float = 0.0
    relative_error: float = 0.0
    threads: int = 1

    def sample_time_s(self, cpus_per_task: float) -> float:
        """Seconds per sample of a copy that is alone on the node."""
        shared_s = self.parallel_s / cpus_per_task
        if not math.isinf(self.overlap):
            return _overlapped(self.serial_s, shared_s, self.overlap)
        computes_s, waits_s = self._turns_s
        return max(shared_s, queueing_time(computes_s, waits_s, self.threads, cpus_per_task))

    @property
    def _turns_s(self) -> tuple[float, float]:
        """What each of the threads computes for a sample, with what others compute meanwhile, and waits."""
        whole_s = self.threads * self.serial_s
        computes_s = min(self.parallel_s, whole_s)
        return computes_s, whole_s - computes_s

    def rate(self, tasks: int, cpus_per_task: float) -> float:
        """Samples per second of `tasks` copies together; 0 for no copy.

        The law may fall for many copies; the rate of a node is never taken for less than it would be with
        some of its tasks idle, because workers that wait for others do not run.
        """
        return max((self.law(n, cpus_per_task) for n in range(1, tasks + 1)), default=0.0)

    def law(self, tasks: int, cpus_per_task: float) -> float:
        """The formula itself."""
        return tasks / (self.sample_time_s(cpus_per_task) * self._contention(tasks))

    def _contention(self, tasks: int) -> float:
        return 1.0 + self.sigma * (tasks - 1) + self.kappa * tasks * (tasks - 1)

    @property
    def formula(self) -> str:
        """The formula with its numbers, for a reader."""
        serial, parallel = _us(self.serial_s), _us(self.parallel_s)
        k = f"{self.overlap:g}"
        if self.overlap == 1:
            time = f"{serial} + {parallel}/c"
        elif math.isinf(self.overlap):
            time = f"max({serial}, {parallel}/c)"
            if self.threads > 1:
                computes, waits = map(_us, self._turns_s)
                time = f"{self.threads} threads that wait {waits}, then take one of c CPUs for {computes}"
        else:
            time = f"({serial}^{k} + ({parallel}/c)^{k})^(1/{k})"
        slowdown = f"1 + {_factor(self.sigma)} (n-1) + {_factor(self.kappa)} n (n-1)"
        return f"rate = 1,000,000 n / (({time}) us * ({slowdown})) with n tasks of c CPUs on a node"


def _us(seconds: float) -> str:
    """Microseconds, without an exponent."""
    us = 1e6 * seconds
    return f"{us:.0f}" if us >= 1000 else f"{us:.4g}" if us >= 1e-4 else "0"


def _factor(value: float) -> str:
    """Three digits, without an exponent; what is less has no weight, whatever number of tasks a node has."""
    return f"{value:.3g}" if value >= 1e-4 else f"{value:.6f}".rstrip("0").rstrip(".") or "0"


def fit(points: Sequence[Point], pace: SampleTime | None = None) -> RateModel:
    """The model nearest to the measurements in the sum of squared relative errors of the time per sample.

    Parameters that the measurements cannot tell apart stay 0: without several task numbers there is no
    contention, and `kappa` needs three of them. Without several CPU numbers the ratio of the two parts of
    t(c), and the threads that queue, are those of `pace`; without that all time counts as serial (more CPUs
    promise nothing that was not seen).

    Args:
        points: the measurements.
        pace: what the stages say about more CPUs.

    Raises:
        ValueError: no points, or one without a positive rate.
    """
    if not points or any(
        point.samples_per_s <= 0 or not math.isfinite(point.samples_per_s) for point in points
    ):
        raise ValueError(f"a fit needs measurements with positive rates, got {list(points)}")
    several_cpus = len({point.cpus_per_task for point in points})
    overlaps = OVERLAPS if several_cpus >= 3 else OVERLAPS[:1]
    models = [_fit_overlap(points, overlap) for overlap in overlaps]
    best = models[0]
    for model in models[1:]:
        if model.relative_error**2 < _WORTH_A_PARAMETER * best.relative_error**2:
            best = model
    known = [point.cpu_s for point in points if point.cpu_s]
    if len({point.tasks for point in points}) == 1:
        best = _contended(best, points)
    if several_cpus == 1 and pace is not None:
        with_all = pace.with_overhead(1e6 * max(known)) if known else pace
        best = _divided(best, points[0].cpus_per_task, with_all)
    return best


def _contended(model: RateModel, points: Sequence[Point]) -> RateModel:
    """With the contention that shows within a task, where tasks were not measured side by side.

    CPUs that wait for memory count as busy: if a sample takes more CPU time in a task with more CPUs, two
    tasks will hold each other up as two CPUs of one do.
    """
    known = {point.cpus_per_task: point for point in points if point.cpu_s}
    if len(known) < 2:
        return model
    fewest, most = known[min(known)], known[max(known)]
    before, after = fewest.cpu_s or 0.0, most.cpu_s or 0.0
    growth = (after / before - 1) / (most.cpus_per_task - fewest.cpus_per_task)
    computes = min(1.0, before * fewest.samples_per_s / fewest.tasks)  # the rest of the time it waits
    return replace(model, sigma=max(0.0, growth * computes))


def _divided(model: RateModel, cpus: int, pace: SampleTime) -> RateModel:
    """The same at the measured number of CPUs; of others as the stages say."""
    said = replace(
        model,
        serial_s=1e-6 * pace.serial_us,
        parallel_s=1e-6 * pace.parallel_us,
        overlap=math.inf,
        threads=pace.threads,
    )
    expected_s = said.sample_time_s(cpus)
    if expected_s <= 0:
        return model
    scale = model.sample_time_s(cpus) / expected_s
    return replace(said, serial_s=scale * said.serial_s, parallel_s=scale * said.parallel_s)


def _fit_overlap(points: Sequence[Point], overlap: float) -> RateModel:
    """Alternates between the two factors, each of which is linear in its own parameters."""
    n = np.array([point.tasks for point in points], float)
    c = np.array([point.cpus_per_task for point in points], float)
    measured = n / np.array([point.samples_per_s for point in points], float)
    scale = float(np.median(measured))
    time = measured / scale
    counts = len(set(n.tolist()))
    queueing = (n - 1) if counts > 1 else np.zeros_like(n)
    pairs = n * (n - 1) if counts > 2 else np.zeros_like(n)
    parts = np.stack([np.ones_like(c), c**-overlap if len(set(c.tolist())) > 1 else np.zeros_like(c)])
    sigma = kappa = 0.0
    before = math.inf
    for _ in range(_ROUNDS):
        contention = 1 + sigma * queueing + kappa * pairs
        alone = (time / contention) ** overlap
        serial, parallel = _two_coefficients(parts / alone, np.ones_like(time))
        factor = (serial * parts[0] + parallel * parts[1]) ** (1 / overlap)
        columns = np.stack([queueing, pairs]) * factor / time
        sigma, kappa = _two_coefficients(columns, 1 - factor / time)
        error = float(np.mean((time / (factor * (1 + sigma * queueing + kappa * pairs)) - 1) ** 2))
        if before - error < _CONVERGED * max(error, 1e-12):
            break
        before = error
    model = RateModel(
        scale * serial ** (1 / overlap), scale * parallel ** (1 / overlap), overlap, sigma, kappa
    )
    return RateModel(
        model.serial_s, model.parallel_s, overlap, sigma, kappa, relative_error=_error(model, points)
    )


def _error(model: RateModel, points: Sequence[Point]) -> float:
    squares = [(model.law(p.tasks, p.cpus_per_task) / p.samples_per_s - 1) ** 2 for p in points]
    return math.sqrt(sum(squares) / len(squares))


def _two_coefficients(columns: np.ndarray, goal: np.ndarray) -> tuple[float, float]:
    """Coefficients a, b >= 0 with the least squares of a * columns[0] + b * columns[1] - goal.

    Exact: with two of them the best is the free one, or lies on one of the axes, or is 0.
    """
    norms = np.linalg.norm(columns, axis=1)
    units = columns / np.where(norms > 0, norms, 1.0)[:, None]  # squares of large entries would overflow
    first, second = (float(unit @ goal) for unit in units)
    cosine = float(units[0] @ units[1])
    candidates = [(0.0, 0.0), (max(0.0, first), 0.0), (0.0, max(0.0, second))]
    if norms.min() > 0 and cosine**2 < 1 - 1e-12:
        determinant = 1 - cosine**2
        both = (first - cosine * second) / determinant, (second - cosine * first) / determinant
        if min(both) >= 0:
            candidates.append(both)
    best = min(candidates, key=lambda pair: _squares(units, goal, pair))
    return best[0] / (float(norms[0]) or 1.0), best[1] / (float(norms[1]) or 1.0)


def _squares(columns: np.ndarray, goal: np.ndarray, pair: tuple[float, float]) -> float:
    return float(np.sum((pair[0] * columns[0] + pair[1] * columns[1] - goal) ** 2))


def _overlapped(first: float, second: float, overlap: float) -> float:
    largest = max(first, second)
    if largest == 0:
        return 0.0
    # The powers of times in seconds would underflow; those of their ratio do not.
    return largest * float(((first / largest) ** overlap + (second / largest) ** overlap) ** (1 / overlap))
