"""Model the throughput of one node as a function of its tasks and their CPUs, fitted to measurements. Pure.

n copies with c CPUs each deliver

    X(n, c) = n / (t(c) * (1 + sigma * (n - 1) + kappa * n * (n - 1)))        samples per second
    t(c)    = (serial**k + (parallel / c)**k) ** (1 / k)                      seconds per sample of one copy

The second factor is the universal scalability law (N. J. Gunther, "Guerrilla Capacity Planning", 2007,
chapter 4): sigma is the fraction of time for which copies queue for shared resources (disk, memory bus),
kappa the pairwise cost of coherency (caches). t(c) is Amdahl's law for k = 1, and for larger k the law of
stages that overlap: `serial` is the time of the stage that does not profit from more CPUs, `parallel` the CPU
time of the rest. No parameter is negative, so that no fit promises more than n times one copy. If only one
number of CPUs was measured, the effect of more CPUs is derived from the times of the stages (`SampleTime`),
if they are known: k is infinite then, as only the slower of the two parts counts.

This holds if a single thread runs the slowest part. Several threads, such as the worker processes of a torch
DataLoader, queue for CPUs even if there is CPU time left: t(c) then is that of a closed queue
(`input_rules.throughput.queueing_time`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from input_rules.throughput import SampleTime, queueing_time

# Candidates for k; at 8, only the slower of the two parts counts, within 9 %.
OVERLAPS = (1.0, 2.0, 4.0, 8.0)

_ROUNDS = 100
_CONVERGED = 1e-10
# Ratio of squared errors below which an additional parameter is accepted.
_WORTH_A_PARAMETER = 0.5


@dataclass(frozen=True, slots=True)
class Point:
    """A measurement: `tasks` copies with `cpus_per_task` CPUs each delivered `samples_per_s` together.

    Attributes:
        cpu_s: CPU time of a sample, seconds; None if unknown.
    """

    tasks: int
    cpus_per_task: int
    samples_per_s: float
    cpu_s: float | None = None


@dataclass(frozen=True, slots=True)
class RateModel:
    """The fitted parameters of the module's formula.

    Attributes:
        serial_s: seconds per sample that more CPUs do not reduce.
        parallel_s: CPU seconds per sample that more CPUs share.
        overlap: k.
        sigma: queueing, 0 or more.
        kappa: coherency cost, 0 or more.
        relative_error: root mean square of (predicted - measured) / measured.
        threads: threads that take `serial_s` if k is infinite; several of them queue for CPUs.
    """

    serial_s: float
    parallel_s: float
    overlap: float = 1.0
    sigma: float = 0.0
    kappa: float = 0.0
    relative_error: float = 0.0
    threads: int = 1

    def sample_time_s(self, cpus_per_task: float) -> float:
        """Return the seconds per sample of a single copy on the node."""
        shared_s = self.parallel_s / cpus_per_task
        if math.isinf(self.overlap):
            computes_s, waits_s = self._thread_times_s
            return max(shared_s, queueing_time(computes_s, waits_s, self.threads, cpus_per_task))
        largest = max(self.serial_s, shared_s)
        if largest == 0:
            return 0.0
        # Powers of times in seconds would underflow; powers of their ratio do not.
        powers = (self.serial_s / largest) ** self.overlap + (shared_s / largest) ** self.overlap
        return float(largest * powers ** (1 / self.overlap))

    @property
    def _thread_times_s(self) -> tuple[float, float]:
        """Time per sample for which each thread computes, and for which it waits."""
        whole_s = self.threads * self.serial_s
        computes_s = min(self.parallel_s, whole_s)
        return computes_s, whole_s - computes_s

    def rate(self, tasks: int, cpus_per_task: float) -> float:
        """Return the samples per second of `tasks` copies together; 0 for no copy.

        The law may fall for many copies, but a node is never rated lower than with some of its tasks idle,
        because workers that wait for others do not run.
        """
        return max((self.law(n, cpus_per_task) for n in range(1, tasks + 1)), default=0.0)

    def law(self, tasks: int, cpus_per_task: float) -> float:
        """Evaluate the formula itself."""
        contention = 1.0 + self.sigma * (tasks - 1) + self.kappa * tasks * (tasks - 1)
        return tasks / (self.sample_time_s(cpus_per_task) * contention)

    @property
    def formula(self) -> str:
        """The formula with its numbers, for readers."""
        serial, parallel = _format_us(self.serial_s), _format_us(self.parallel_s)
        k = f"{self.overlap:g}"
        if self.overlap == 1:
            time = f"{serial} + {parallel}/c"
        elif math.isinf(self.overlap):
            time = f"max({serial}, {parallel}/c)"
            if self.threads > 1:
                computes, waits = map(_format_us, self._thread_times_s)
                time = f"{self.threads} threads that wait {waits}, then take one of c CPUs for {computes}"
        else:
            time = f"({serial}^{k} + ({parallel}/c)^{k})^(1/{k})"
        slowdown = f"1 + {_format_factor(self.sigma)} (n-1) + {_format_factor(self.kappa)} n (n-1)"
        return f"rate = 1,000,000 n / (({time}) us * ({slowdown})) with n tasks of c CPUs on a node"


def _format_us(seconds: float) -> str:
    """Format microseconds without an exponent."""
    us = 1e6 * seconds
    return f"{us:.0f}" if us >= 1000 else f"{us:.4g}" if us >= 1e-4 else "0"


def _format_factor(value: float) -> str:
    """Format three digits without an exponent; smaller values have no effect for any number of tasks."""
    return f"{value:.3g}" if value >= 1e-4 else f"{value:.6f}".rstrip("0").rstrip(".") or "0"


def fit(points: Sequence[Point], sample_time: SampleTime | None = None) -> RateModel:
    """Fit the model to measurements by least squares of the relative errors of the time per sample.

    Parameters that the measurements cannot distinguish stay 0: without several task counts there is no
    contention, and `kappa` needs three of them. Without several CPU counts the ratio of the two parts of
    t(c), and the threads that queue, are those of `sample_time`; without that, all time counts as serial, so
    that more CPUs promise nothing that was not observed.

    Args:
        points: the measurements.
        sample_time: how the times of the stages depend on the CPUs.

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
        best = _add_contention_within_task(best, points)
    if several_cpus == 1 and sample_time is not None:
        with_all = sample_time.with_overhead(1e6 * max(known)) if known else sample_time
        expected = replace(
            best,
            serial_s=1e-6 * with_all.serial_us,
            parallel_s=1e-6 * with_all.parallel_us,
            overlap=math.inf,
            threads=with_all.threads,
        )
        cpus = points[0].cpus_per_task
        expected_s = expected.sample_time_s(cpus)
        if expected_s > 0:  # keep the measured time, and split it as the stages do
            scale = best.sample_time_s(cpus) / expected_s
            best = replace(
                expected, serial_s=scale * expected.serial_s, parallel_s=scale * expected.parallel_s
            )
    return best


def _add_contention_within_task(model: RateModel, points: Sequence[Point]) -> RateModel:
    """Estimate contention from the CPUs of a task if only one number of tasks was measured."""
    # CPUs that wait for memory count as busy: if a sample takes more CPU time in a task with more CPUs, two
    # tasks will delay each other as two CPUs of one task do.
    known = {point.cpus_per_task: point for point in points if point.cpu_s}
    if len(known) < 2:
        return model
    fewest, most = known[min(known)], known[max(known)]
    before, after = fewest.cpu_s or 0.0, most.cpu_s or 0.0
    growth = (after / before - 1) / (most.cpus_per_task - fewest.cpus_per_task)
    computes = min(1.0, before * fewest.samples_per_s / fewest.tasks)  # the remaining time it waits
    return replace(model, sigma=max(0.0, growth * computes))


def _fit_overlap(points: Sequence[Point], overlap: float) -> RateModel:
    """Alternate between the two factors, each of which is linear in its own parameters."""
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
        uncontended = (time / contention) ** overlap
        serial, parallel = _two_coefficients(parts / uncontended, np.ones_like(time))
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
    squares = [(model.law(p.tasks, p.cpus_per_task) / p.samples_per_s - 1) ** 2 for p in points]
    return replace(model, relative_error=math.sqrt(sum(squares) / len(squares)))


def _two_coefficients(columns: np.ndarray, goal: np.ndarray) -> tuple[float, float]:
    """Return a, b >= 0 that minimize the squares of a * columns[0] + b * columns[1] - goal.

    Exact: the minimum is the unconstrained one, is on one of the axes, or is 0.
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

    def squares(pair: tuple[float, float]) -> float:
        return float(np.sum((pair[0] * units[0] + pair[1] * units[1] - goal) ** 2))

    best = min(candidates, key=squares)
    return best[0] / (float(norms[0]) or 1.0), best[1] / (float(norms[1]) or 1.0)
