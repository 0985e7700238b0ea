from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from cs_stream.receiver import RunStats, WorkerPhase, WorkerStats
from cs_system.monitoring.recorder import Curve, RunRecorder, StepTraffic, Totals


def worker(index: int, batches: int, consumer_wait_s: float = 0.0, credit_wait_s: float = 0.0) -> WorkerStats:
    return WorkerStats(
        index,
        WorkerPhase.CONNECTED,
        f"node{index}",
        100 + index,
        1,
        batches,
        batches,
        1000 * batches,
        consumer_wait_s,
        credit_wait_s,
        "",
    )


def stats(*workers: WorkerStats, position: int = 0) -> RunStats:
    return RunStats(position, position, 96, True, workers)


def losses(*values: float, dtype: type = np.float32) -> dict[str, np.ndarray]:
    return {"output_loss": np.array(values, dtype)}


def test_totals_of_two_inputs_add_up():
    recorder = RunRecorder()
    recorder.begin_input(256, StepTraffic())
    recorder.add_steps(10, losses(*range(10)), 0.25)
    recorder.end_input(stats(worker(0, 12)))
    recorder.begin_input(32, StepTraffic(1000, 400))
    recorder.add_steps(2, {}, 0.5)
    assert recorder.totals(stats(worker(0, 3), worker(1, 2))) == Totals(
        steps=12,
        samples=10 * 256 + 2 * 32,
        batches=17,
        size_bytes=17_000,
        input_wait_s=0.75,
        to_wafer_bytes=2000,
        to_memory_bytes=800,
    )
    assert recorder.loss == 9.0


def test_rates_are_those_of_the_last_seconds():
    recorder = RunRecorder()
    recorder.begin_input(1, StepTraffic())
    recorder.sample(0.0, 1000.0, 0, stats(worker(0, 0), worker(1, 0)))
    for second in range(1, 21):
        recorder.add_steps(20, {}, 0.1)
        slow = worker(0, 10 * second, consumer_wait_s=0.5 * second)
        recorder.sample(
            float(second),
            1000.0 + second,
            20 * second,
            stats(slow, worker(1, 10 * second, 0.0, 0.9 * second)),
        )
    rates = recorder.rates()
    assert rates.input_bytes_per_s == pytest.approx(20_000)
    assert rates.input_wait == pytest.approx(0.1)
    first, second_worker = rates.workers
    assert (first.batches_per_s, first.input_wait, first.credit_wait) == pytest.approx((10, 0.5, 0))
    assert (second_worker.input_wait, second_worker.credit_wait) == pytest.approx((0, 0.9))


def test_a_wait_that_has_not_ended_shows_in_the_rates():
    recorder = RunRecorder()
    recorder.begin_input(1, StepTraffic())
    for second in range(4):
        recorder.sample(float(second), 1000.0 + second, 7, stats(worker(0, 1)), waiting_s=float(second))
    assert recorder.rates().input_wait == pytest.approx(1.0)


def test_rates_of_an_input_do_not_include_the_one_before():
    recorder = RunRecorder()
    recorder.begin_input(1, StepTraffic())
    for second in range(3):
        recorder.sample(float(second), 1000.0 + second, 0, stats(worker(0, 100 * second)))
    recorder.end_input(stats(worker(0, 200)))
    recorder.begin_input(1, StepTraffic())
    recorder.sample(3.0, 1003.0, 0, stats(worker(0, 0)))
    recorder.sample(4.0, 1004.0, 0, stats(worker(0, 5)))
    assert recorder.rates().workers[0].batches_per_s == pytest.approx(5)


def test_losses_of_16_bits_are_averaged_in_64():
    recorder = RunRecorder()
    recorder.begin_input(1, StepTraffic())
    recorder.sample(0.0, 1000.0, 0, stats(worker(0, 0)))
    recorder.add_steps(400, losses(*[250.0] * 400, dtype=ml_dtypes.bfloat16), 0.0)
    recorder.sample(1.0, 1001.0, 400, stats(worker(0, 1)))
    assert [(point.step, point.loss) for point in recorder.curve()] == [(400, 250.0)]


def test_a_curve_of_any_length_stays_small_and_covers_the_whole_run():
    curve = Curve(capacity=100)
    for second in range(50_000):
        curve.add(1000.0 + second, 10 * second, 1.0 / (1 + second))
    points = curve.points()
    assert 40 < len(points) < 100
    assert points[0].time < 3000
    assert points[-1].time > 50_000
    gaps = np.diff([point.time for point in points])
    assert gaps.max() < 2.5 * gaps.min()
    assert all(point.steps_per_s == pytest.approx(10, rel=0.02) for point in points)


def test_a_curve_has_no_point_while_no_step_is_made():
    curve = Curve()
    assert not curve.add(0.0, 5, None)
    assert not curve.add(100.0, 5, None)
    assert curve.add(101.0, 8, None)
    assert [point.steps_per_s for point in curve.points()] == [3.0]
