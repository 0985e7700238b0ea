from __future__ import annotations

import math
import random

import pytest

from input_analyzer import gains
from input_analyzer.measure.rates import Effort, Stop
from input_analyzer.measure.statistics import Count, SteadyRate, steady_rate, student_975


def counts(
    rate: float, seconds: float, noise: float = 0.0, seed: int = 0, begin: float = 100.0
) -> list[Count]:
    """Reports of a copy every 20 ms."""
    rng = random.Random(seed)
    samples, found = 0.0, []
    for step in range(int(seconds / 0.02) + 1):
        found.append(Count(begin + 0.02 * step, samples))
        samples += rate * 0.02 * rng.gauss(1, noise)
    return found


def test_copies_that_never_change_have_a_sharp_rate() -> None:
    found = steady_rate([counts(1000, 4), counts(500, 4)], 100, 104)
    assert found.samples_per_s == pytest.approx(1500)
    assert found.high - found.low < 1e-6
    assert found.warm_up_s == 0
    assert found.settled


def test_the_interval_holds_the_true_rate_in_19_of_20_cases() -> None:
    cases: list[SteadyRate] = [
        steady_rate([counts(1000, 4, noise=0.3, seed=seed)], 100, 104) for seed in range(200)
    ]
    hits = sum(case.low <= 1000 <= case.high for case in cases)
    assert 180 <= hits <= 200
    assert sum(case.relative_half_width for case in cases) / 200 < 0.06


def wandering(seconds: float, memory_s: float, noise: float, seed: int) -> list[Count]:
    """Counts of a copy whose rate comes back to 1000 slowly: a first-order autoregression."""
    rng = random.Random(seed)
    kept = math.exp(-0.02 / memory_s)
    away, samples, found = rng.gauss(0, 1), 0.0, [Count(100.0, 0.0)]
    for step in range(1, round(seconds / 0.02) + 1):
        away = kept * away + math.sqrt(1 - kept**2) * rng.gauss(0, 1)
        samples += 1000 * 0.02 * max(0.0, 1 + noise * away)
        found.append(Count(100 + 0.02 * step, samples))
    return found


@pytest.mark.parametrize("memory_s", [0.02, 0.05, 0.1])
def test_the_interval_holds_the_true_rate_where_neighbors_are_alike(memory_s: float) -> None:
    cases = [steady_rate([wandering(4, memory_s, 0.2, seed)], 100, 104) for seed in range(200)]
    assert sum(case.low <= 1000 <= case.high for case in cases) >= 180


@pytest.mark.parametrize(("memory_s", "fewest"), [(0.02, 180), (0.05, 174), (0.1, 172)])
def test_and_where_the_measurement_ends_as_soon_as_it_is_tight(memory_s: float, fewest: int) -> None:
    hits, elapsed = 0, 0.0
    for seed in range(200):
        all_counts = wandering(4, memory_s, 0.1, seed)
        stop = Stop(Effort(1.0, 4.0))
        for look in range(16):
            end = 101 + 0.2 * look
            rate = steady_rate([[c for c in all_counts if c.t <= end + 1e-9]], 100, end)
            if stop.now(rate, end - 100, enough=True):
                break
        hits += rate.low <= 1000 <= rate.high
        elapsed += end - 100
    assert hits >= fewest
    assert elapsed / 200 < 3.6, "and it does end"


def test_a_burst_at_the_begin_is_warm_up() -> None:
    burst = counts(8000, 0.6)
    later = [Count(c.t + 0.6, c.samples + burst[-1].samples) for c in counts(1000, 3.4, noise=0.05)]
    found = steady_rate([burst[:-1] + later], 100, 104)
    assert found.samples_per_s == pytest.approx(1000, rel=0.03)
    assert 0.5 < found.warm_up_s < 1.2
    assert found.settled


def test_a_rate_that_still_climbs_has_a_wide_interval() -> None:
    climbing = [Count(100 + 0.02 * step, (0.02 * step) ** 3) for step in range(201)]
    assert steady_rate([climbing], 100, 104).relative_half_width > 0.3


def test_a_copy_that_hangs_has_no_rate() -> None:
    found = steady_rate([[Count(100, 5), Count(104, 5)]], 100, 104)
    assert found.samples_per_s == 0
    assert found.relative_half_width == float("inf")


# Quantiles from the table of Fisher and Yates, "Statistical Tables", 1963.
@pytest.mark.parametrize(
    ("freedom", "t"), [(1, 12.706), (9, 2.262), (13, 2.160), (14, 2.145), (30, 2.042), (120, 1.980)]
)
def test_students_t(freedom: int, t: float) -> None:
    assert student_975(freedom) == pytest.approx(t, rel=1e-3)


@pytest.mark.parametrize(
    ("times", "noise", "rounds"),
    [(3.0, 0.01, 4), (1.0, 0.0, 6), (1.1, 0.01, 6), (1.1, 0.05, 9), (3.0, 0.3, 9)],
)
def test_a_clear_gain_takes_fewer_rounds(
    monkeypatch: pytest.MonkeyPatch, times: float, noise: float, rounds: int
) -> None:
    clock = iter(range(1000))
    monkeypatch.setattr(gains.time, "monotonic", lambda: next(clock) * (0 if noise < 0.03 else 1))
    made = 0

    def after() -> float:
        nonlocal made
        made += 1
        return times * math.exp(noise * (-1) ** made)

    ratio = gains.compare_interleaved(lambda: 1.0, after, fewest=6, seconds=3.0, say=lambda: None)
    assert made == rounds
    assert ratio[1] - 1e-9 <= times <= ratio[2] + 1e-9


@pytest.mark.parametrize(("start_s", "batch_s", "measured"), [(0.5, 0.01, True), (0.0, 0.5, False)])
def test_a_slow_start_does_not_make_an_input_slow(
    monkeypatch: pytest.MonkeyPatch, start_s: float, batch_s: float, measured: bool
) -> None:
    clock = Clock()
    monkeypatch.setattr(gains, "time", clock)

    def take(batches: list[int]) -> None:
        batches[0] += 1
        clock.now += start_s if batches[0] <= 4 else batch_s  # four workers start one after another

    before, after = [0], [0]
    ratio = gains.measure_ratio(lambda: take(before), lambda: take(after), 4.0, lambda: None)
    assert (ratio == pytest.approx((1, 1, 1))) if measured else ratio is None


class Clock:
    """Stands for the module `time`; the test says how time passes."""

    def __init__(self) -> None:
        self.now = 0.0

    def perf_counter(self) -> float:
        return self.now

    monotonic = perf_counter
