from __future__ import annotations

import math

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from input_analyzer.rate_model import Point, RateModel, fit
from input_rules.throughput import SampleTime, queueing_time

times = st.floats(1e-7, 1e-2)
contention = st.floats(0, 0.3)
models = st.builds(RateModel, times, times, st.just(1.0), contention, st.floats(0, 0.01))
points = st.lists(
    st.builds(Point, st.integers(1, 16), st.integers(1, 16), st.floats(1e-2, 1e7)), min_size=1, max_size=8
)
GRID = [(n, c) for c in (1, 2, 4, 8) for n in (1, 2, 4, 8, 16) if n * c <= 16]


def measured(model: RateModel, layouts: list[tuple[int, int]]) -> list[Point]:
    return [Point(n, c, model.law(n, c)) for n, c in layouts]


@settings(max_examples=40)
@given(models)
def test_a_law_is_found_again_from_what_it_predicts(model: RateModel) -> None:
    found = fit(measured(model, GRID))
    for n, c in [(3, 1), (6, 2), (3, 4), (12, 1), (1, 16)]:
        assert found.law(n, c) == pytest.approx(model.law(n, c), rel=0.03)


@settings(max_examples=40)
@given(times, times, st.sampled_from([2.0, 4.0, 16.0]))
def test_stages_that_overlap_are_distinguished_from_stages_that_queue(
    serial: float, parallel: float, overlap: float
) -> None:
    model = RateModel(serial, parallel, overlap)
    found = fit(measured(model, [(1, 1), (1, 2), (1, 4), (1, 8), (1, 16)]))
    for c in (1, 3, 6, 12, 16):
        assert found.law(1, c) == pytest.approx(model.law(1, c), rel=0.13)


@settings(max_examples=40)
@given(points)
def test_whatever_is_measured_the_model_keeps_to_what_is_possible(measurements: list[Point]) -> None:
    model = fit(measurements)
    for c in (1, 2, 4, 16):
        assert model.rate(0, c) == 0
        rates = [model.rate(n, c) for n in range(1, 17)]
        assert all(math.isfinite(rate) and rate > 0 for rate in rates)
        assert rates == sorted(rates), "a further worker never lowers the rate of a node"
        assert all(rate <= n * rates[0] * (1 + 1e-9) for n, rate in enumerate(rates, 1))
        assert model.rate(2, 2 * c) >= model.rate(2, c) * (1 - 1e-9), "more CPUs never lower it"


@settings(max_examples=40)
@given(points, st.floats(1e-3, 1e3))
def test_the_unit_of_the_rate_does_not_matter(measurements: list[Point], unit: float) -> None:
    scaled = [Point(p.tasks, p.cpus_per_task, p.samples_per_s * unit) for p in measurements]
    assert fit(scaled).rate(3, 2) == pytest.approx(unit * fit(measurements).rate(3, 2), rel=1e-3)


def test_one_measurement_promises_neither_gain_of_cpus_nor_contention() -> None:
    model = fit([Point(1, 1, 1000.0)])
    assert model.rate(1, 4) == pytest.approx(1000)
    assert model.rate(4, 1) == pytest.approx(4000)


def test_more_cpus_give_what_the_stages_say_where_one_number_was_measured() -> None:
    # Measured 7 ms: 6.5 ms of stages, 4 ms of them in one thread, and 0.5 ms of overhead.
    one_cpu = [Point(1, 1, 1 / 7e-3), Point(2, 1, 2 / 7e-3)]
    model = fit(one_cpu, SampleTime(serial_us=4000, parallel_us=6500, cpu_us=6500))
    assert model.rate(1, 1) == pytest.approx(1 / 7e-3)
    assert model.rate(1, 2) == pytest.approx(1 / (7e-3 * 4 / 6.5))
    assert model.rate(1, 16) == model.rate(1, 2)
    assert "max(4308, 7000/c)" in model.formula
    tiny = RateModel(0.0123456, 1e-12, sigma=0.03, kappa=2.24e-12).formula
    assert tiny.startswith("rate = 1,000,000 n / ((12346 + 0/c) us * (1 + 0.03 (n-1) + 0 n (n-1)))")
    assert "0.00002 n (n-1)" in RateModel(1e-3, 0.0, kappa=2e-5).formula
    assert fit(one_cpu, SampleTime(3000, 3000, 3000)).rate(1, 2) == pytest.approx(1 / 7e-3)


def test_cpu_time_that_no_stage_accounts_for_is_not_divided_among_cpus() -> None:
    with_overhead = fit([Point(1, 1, 1000.0, cpu_s=1e-3)], SampleTime(100, 600, 600))
    assert with_overhead.rate(1, 2) == pytest.approx(2000)  # bound by the CPUs: 0.5 ms each
    assert with_overhead.rate(1, 4) == pytest.approx(2000)  # then by 0.1 ms and the 0.4 ms of overhead
    assert fit([Point(1, 1, 1000.0)], SampleTime(100, 600, 600)).rate(1, 4) == pytest.approx(4000)


def test_measured_numbers_of_cpus_say_more_than_the_stages() -> None:
    points = [Point(1, 1, 100.0), Point(1, 2, 100.0)]
    assert fit(points, SampleTime(0, 1000, 1000)).rate(1, 2) == pytest.approx(100)


def mean_value_analysis(computes: float, waits: float, threads: int) -> float:
    """Time per sample of a closed queue with one server, by adding threads one by one (Reiser, Lavenberg)."""
    waiting_for_cpu, rate = 0.0, 0.0
    for count in range(1, threads + 1):
        response = computes * (1 + waiting_for_cpu)
        rate = count / (waits + response)
        waiting_for_cpu = rate * response
    return 1 / rate


@settings(max_examples=60)
@given(st.floats(1e-3, 1e3), st.floats(1e-3, 1e3), st.integers(1, 300))
def test_threads_that_share_one_cpu_are_a_closed_queue(computes: float, waits: float, threads: int) -> None:
    expected = mean_value_analysis(computes, waits, threads)
    assert queueing_time(computes, waits, threads, 1) == pytest.approx(expected, rel=1e-6)


_TIMES = st.floats(0, 1e4, allow_subnormal=False)


@settings(max_examples=60)
@given(_TIMES, _TIMES, st.integers(1, 500), st.integers(1, 64))
@example(5e-324, 2.0, 9, 1)
@example(5e-324, 1.0, 2, 2)
@example(1e-12, 1.0, 500, 1)
def test_a_queue_keeps_to_its_bounds(computes: float, waits: float, threads: int, cpus: int) -> None:
    time, cycle = queueing_time(computes, waits, threads, cpus), (computes + waits) / threads
    assert time >= max(cycle, computes / cpus) * (1 - 1e-9)
    assert time <= (cycle + computes) * (1 + 1e-9)
    assert queueing_time(computes, waits, threads, cpus + 1) <= time * (1 + 1e-9)
    assert queueing_time(computes, waits, threads + 1, cpus) <= time * (1 + 1e-9)


def test_threads_on_separate_cpus_do_not_queue() -> None:
    assert queueing_time(2.0, 6.0, 4, 4) == 2.0
    assert queueing_time(2.0, 0.0, 4, 2) == 1.0
    assert queueing_time(0.0, 6.0, 4, 2) == 1.5
    assert queueing_time(1.0, 1.0, 2, 1) == pytest.approx(1.25)


# Measured on two quiet CPUs (PyTorch 2.13): the stages, CPU time of a sample in seconds, and samples per
# second of a copy with one CPU, of two such copies, and of a copy with two CPUs.
SEEN = {
    "two workers compute 1.5 and wait 3 ms": (SampleTime(2313, 1665, 1665, 2), 1.875e-3, 318.2, 640.1, 416.1),
    "three compute 2 and wait 4 ms": (SampleTime(2038, 2116, 2116, 3), 2.417e-3, 325.8, 652.4, 457.4),
    "six compute 1 and wait 8 ms": (SampleTime(1535, 1244, 1244, 6), 1.391e-3, 601.7, 1187.1, 646.7),
    "five compute 1 and wait 3 ms": (SampleTime(822, 1119, 1119, 5), 1.310e-3, 800.8, 1495.2, 1058.1),
    "four compute 3 and wait 0.5 ms": (SampleTime(899, 3162, 3162, 4), 3.407e-3, 297.2, 570.6, 553.5),
    "two compute 4.5 ms": (SampleTime(2257, 4630, 4630, 2), 4.883e-3, 205.9, 400.2, 388.3),
    "two compute 0.5 and wait 6 ms": (SampleTime(3325, 705, 705, 2), 0.922e-3, 294.3, 588.6, 295.4),
}


@pytest.mark.parametrize("name", SEEN)
def test_worker_processes_queue_for_a_cpu(name: str) -> None:
    stages, cpu_s, one, side_by_side, two_cpus = SEEN[name]
    up = fit([Point(1, 1, one, cpu_s), Point(2, 1, side_by_side, cpu_s)], stages)
    assert up.rate(1, 2) == pytest.approx(two_cpus, rel=0.15)
    down = fit([Point(1, 2, two_cpus, cpu_s)], stages)
    assert down.rate(1, 1) == pytest.approx(one, rel=0.15)
    assert f"{stages.threads} threads that wait" in up.formula


def test_what_worker_processes_compute_besides_is_divided_among_them() -> None:
    # Four workers need 1 ms of computing and 1 ms of waiting, and 1 ms more that no stage accounts for.
    stages = SampleTime(serial_us=500, parallel_us=1000, cpu_us=1000, threads=4)
    model = fit([Point(1, 4, 1 / 0.75e-3, cpu_s=2e-3)], stages)
    assert model.rate(1, 8) == pytest.approx(1 / 0.75e-3)
    assert model.rate(1, 1) == pytest.approx(500, rel=0.1)


def test_memory_that_cpus_of_a_task_wait_for_is_waited_for_by_tasks_too() -> None:
    points = [Point(1, 1, 1000.0, cpu_s=1.0e-3), Point(1, 2, 1200.0, cpu_s=1.5e-3)]
    assert fit(points).rate(2, 1) == pytest.approx(2000 / 1.5)
    waits = [Point(1, 1, 100.0, cpu_s=0.1e-3), Point(1, 2, 100.0, cpu_s=0.15e-3)]
    assert fit(waits).rate(2, 1) == pytest.approx(200, rel=0.01)


def test_noise_of_five_percent_moves_a_prediction_by_less_than_ten() -> None:
    truth = RateModel(20e-6, 300e-6, sigma=0.04)
    noise = [0.95, 1.04, 1.0, 0.97, 1.05, 1.02, 0.96, 1.03, 0.98, 1.01, 1.05, 0.95, 1.0]
    noisy = [
        Point(p.tasks, p.cpus_per_task, p.samples_per_s * factor)
        for p, factor in zip(measured(truth, GRID), noise, strict=False)
    ]
    found = fit(noisy)
    assert 0.01 < found.relative_error < 0.06
    for n, c in [(3, 1), (6, 2), (3, 4), (12, 1)]:
        assert found.rate(n, c) == pytest.approx(truth.rate(n, c), rel=0.1)


def test_a_node_whose_copies_slow_each_other_down_is_not_predicted_to_lose_by_idle_workers() -> None:
    model = RateModel(1e-3, 0.0, sigma=0.0, kappa=0.2)
    assert model.law(8, 1) < model.law(2, 1)
    assert model.rate(8, 1) == max(model.law(n, 1) for n in range(1, 9))


@pytest.mark.parametrize("rates", [[], [0.0], [-1.0], [math.inf], [math.nan]])
def test_invalid_rates_are_refused(rates: list[float]) -> None:
    with pytest.raises(ValueError, match="positive rates"):
        fit([Point(1, 1, rate) for rate in rates])
