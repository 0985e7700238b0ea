"""Self times of stages against their known cost.

Functions use CPU time by the clock of their thread, or sleep: neither depends on what else
the machine does.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from input_analyzer.conclusions import find_bottleneck
from input_analyzer.errors import InputEndedError
from input_analyzer.measure import cpu_time
from input_analyzer.measure.examine import stage_costs
from input_analyzer.tf import timing as tf_timing
from input_analyzer.tf.eager_graph import rebuild_in_graph
from input_analyzer.tf.timing import count, time_stages
from input_rules.tf.pipeline import call_in_graph, trace

AUTOTUNE = tf.data.AUTOTUNE
TOLERANCE = 0.15
CALL_US = 150.0
"""What it takes to call Python from a pipeline, at most."""


def _spin(us: int) -> None:
    end = time.thread_time_ns() + us * 1000
    while time.thread_time_ns() < end:
        pass


def burn(us: int) -> Callable[[Any], Any]:
    """Return a map function that takes this CPU time."""
    return _called(lambda: _spin(us))


def nap(us: int) -> Callable[[Any], Any]:
    """Return a map function that waits for this time."""
    return _called(lambda: time.sleep(us / 1e6))


def read(path: Path, us: int) -> Callable[[Any], Any]:
    """A map function that reads a file and waits as if it were far away."""

    def action() -> None:
        path.read_bytes()
        time.sleep(us / 1e6)

    return _called(action)


def _called(action: Callable[[], Any]) -> Callable[[Any], Any]:
    def function(x: Any) -> Any:
        def run(value: Any) -> Any:
            action()
            return value

        return tf.ensure_shape(tf.numpy_function(run, [x], x.dtype), x.shape)

    return function


def numbers(count: int = 1000) -> Any:
    return tf.data.Dataset.range(count)


def one_map(_: Path) -> Any:
    return numbers().map(burn(3000)).repeat().batch(4, drop_remainder=True)


def behind_batch(_: Path) -> Any:
    return numbers().map(burn(2000)).repeat().batch(4, drop_remainder=True).map(burn(20_000)).prefetch(2)


def parallel_and_shuffled(_: Path) -> Any:
    dataset = numbers().map(nap(4000), num_parallel_calls=AUTOTUNE).shuffle(200, seed=1).repeat()
    return dataset.map(burn(2000), num_parallel_calls=2).batch(8, drop_remainder=True).prefetch(AUTOTUNE)


def zipped(_: Path) -> Any:
    pairs = tf.data.Dataset.zip((numbers().map(burn(2000)), numbers().map(nap(5000))))
    return pairs.map(lambda a, b: burn(3000)(a) + b).repeat().batch(2, drop_remainder=True)


def filtered(_: Path) -> Any:
    kept = numbers().map(burn(2000)).filter(lambda x: tf.equal(x % 4, 0))
    return kept.map(burn(3000)).repeat().batch(2, drop_remainder=True)


def interleaved(path: Path) -> Any:
    inner = numbers(4).interleave(
        lambda x: numbers(10).map(read(path, 3000)), cycle_length=2, num_parallel_calls=AUTOTUNE
    )
    return inner.map(burn(2000)).repeat().batch(5, drop_remainder=True).prefetch(1)


def sampled(_: Path) -> Any:
    both = [numbers().map(burn(4000)).repeat(), numbers().map(nap(3000)).repeat()]
    mixed = tf.data.Dataset.choose_from_datasets(both, numbers(2).repeat())
    return mixed.batch(4, drop_remainder=True).map(burn(4000))


def unbatched(_: Path) -> Any:
    rows = numbers().batch(10, drop_remainder=True).map(nap(20_000)).unbatch()
    return rows.map(burn(1500)).repeat().batch(5, drop_remainder=True)


def cached(_: Path) -> Any:
    return numbers().map(burn(4000)).cache().repeat().map(burn(2000)).batch(4, drop_remainder=True)


TRUTH: dict[Callable[[Path], Any], tuple[dict[str, float], str]] = {
    one_map: ({"map": 3000}, "map"),
    behind_batch: ({"map": 2000, "map_2": 5000}, "map_2"),
    parallel_and_shuffled: ({"map": 4000, "map_2": 2000}, "map"),
    zipped: ({"map": 2000, "map_2": 5000, "map_3": 3000}, "map_2"),
    filtered: ({"map": 8000, "map_2": 3000}, "map"),
    interleaved: ({"interleave": 3000, "map": 2000}, "interleave"),
    sampled: ({"map": 2000, "map_2": 1500, "map_3": 1000}, "map"),
    unbatched: ({"map": 2000, "map_2": 1500}, "map"),
    cached: ({"map": 4000, "map_2": 2000}, "map_2"),
}
"""By pipeline: microseconds of a stage for a sample, and the bottleneck."""


@pytest.fixture
def short_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Measurements of a tenth of the usual length, for tests that need no exact times."""
    monkeypatch.setattr(tf_timing, "CHUNK_S", tf_timing.CHUNK_S / 10)


@pytest.mark.soak  # true on a machine that does little else
@pytest.mark.parametrize("make", TRUTH, ids=lambda make: make.__name__)
def test_stage_times_are_true(make: Callable[[Path], Any], tmp_path: Path) -> None:
    path = tmp_path / "data"
    path.write_bytes(bytes(10_000))
    expected, bottleneck = TRUTH[make]
    traced = trace(lambda: make(path))
    timing = time_stages(traced, seconds=2.0)
    assert timing.notes == ()
    times = {found.stage: found for found in timing.times}
    assert set(times) == {stage.name for stage in traced.pipeline.stages}
    for name, true in expected.items():
        calls = 1.0 if true else 0.0
        low, high = true * (1 - TOLERANCE), true * (1 + TOLERANCE) + calls * CALL_US
        assert low <= times[name].self_time_us <= high, (name, times[name], true)
    for name, found in times.items():
        assert name in expected or found.self_time_us < 100, found
    costs = stage_costs(traced.pipeline, timing.times)
    found_bottleneck = find_bottleneck(costs)
    assert found_bottleneck is not None
    assert found_bottleneck.stage == bottleneck


def test_waiting_and_computing_are_distinguished() -> None:
    def make() -> Any:
        # Calling Python takes milliseconds of CPU where other programs are busy: a wait is far longer.
        return numbers().map(burn(4000)).map(nap(20_000)).repeat().batch(2, drop_remainder=True)

    times = {t.stage: t for t in time_stages(trace(make), seconds=2.0).times}
    assert times["map"].cpu_us > 2 * times["map"].wait_us
    assert times["map_2"].wait_us > 2 * times["map_2"].cpu_us


@pytest.mark.soak
def test_a_busy_machine_adds_no_waiting() -> None:
    others = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(4)]
    try:
        for _ in range(4):
            times = {t.stage: t for t in time_stages(trace(lambda: behind_batch(Path())), seconds=2.0).times}
            assert times["map"].wait_us < 300
            assert times["map_2"].wait_us < 750
    finally:
        for other in others:
            other.kill()
            other.wait()


@pytest.mark.usefixtures("short_chunks")
def test_functions_for_eager_execution_are_timed() -> None:
    def make() -> Any:
        return numbers().filter(lambda x: x % 2 == 0).map(burn(2000)).repeat().batch(2, drop_remainder=True)

    times = {t.stage: t for t in time_stages(trace(make, in_graph=rebuild_in_graph), seconds=0.5).times}
    assert times["map"].cpu_us > 2000 * (1 - TOLERANCE)
    assert max(times.values(), key=lambda found: found.self_time_us).stage == "map"


@pytest.mark.usefixtures("short_chunks")
def test_what_a_cache_spares_is_marked(tmp_path: Path) -> None:
    times = {t.stage: t for t in time_stages(trace(lambda: cached(tmp_path)), seconds=0.1).times}
    assert {name: found.once for name, found in times.items()} == {
        "range": True,
        "map": True,
        "cache": False,
        "repeat": False,
        "map_2": False,
        "batch": False,
    }


def test_elements_of_stages_are_counted(tmp_path: Path) -> None:
    counts = count(trace(lambda: filtered(tmp_path)), 1.0)
    assert counts.per_sample["map"] == pytest.approx(4.0, rel=0.1)
    assert counts.per_sample["map_2"] == pytest.approx(1.0)
    assert counts.per_sample["batch"] == pytest.approx(0.5)
    assert counts.read_per_sample("filter", "map") == pytest.approx(4.0, rel=0.1)


def test_errors_of_the_pipeline_are_its_own() -> None:
    def broken(value: Any) -> Any:
        raise ValueError("the seventh column is empty")

    def make() -> Any:
        return numbers().map(lambda x: tf.numpy_function(broken, [x], tf.int64)).batch(2)

    with pytest.raises(tf.errors.InvalidArgumentError, match="the seventh column is empty"):
        time_stages(trace(make), seconds=0.5)


@pytest.mark.usefixtures("short_chunks")
def test_tables_of_the_input_function_exist() -> None:
    def make() -> Any:
        keys = tf.lookup.KeyValueTensorInitializer(np.arange(10), np.arange(10) * 2)
        table = tf.lookup.StaticHashTable(keys, -1)
        return numbers(10).map(table.lookup).repeat().batch(2, drop_remainder=True)

    timing = time_stages(trace(make), seconds=0.1)
    assert timing.notes == ()
    assert "map" in {time.stage for time in timing.times}


@pytest.mark.parametrize("eager", [True, False])
@pytest.mark.usefixtures("short_chunks")
def test_functions_with_loops_and_branches_are_timed(eager: bool) -> None:
    def looped(x: Any) -> Any:
        value = tf.while_loop(lambda i, _: i < 3, lambda i, v: (i + 1, v + 1), [0, x])[1]
        return tf.cond(value > 5, lambda: value, lambda: -value)

    def make() -> Any:
        return numbers().map(looped).map(burn(1000)).repeat().batch(2, drop_remainder=True)

    timing = time_stages(trace(make, in_graph=rebuild_in_graph if eager else call_in_graph), seconds=0.1)
    assert {"map", "map_2"} <= {time.stage for time in timing.times}


@pytest.mark.usefixtures("short_chunks")
def test_what_lets_each_element_pass_once_is_timed_round_by_round() -> None:
    def make() -> Any:
        return tf.data.Dataset.range(3000).unique().map(burn(200)).repeat().batch(10, drop_remainder=True)

    timing = time_stages(trace(make), seconds=0.5)
    assert timing.notes == ()
    times = {found.stage: found for found in timing.times}
    assert times["unique"].self_time_us < times["map"].self_time_us


def test_what_remembers_in_python_that_nothing_more_passes_is_left_untimed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(tf_timing, "CHUNK_S", 0.0)  # an element takes longer, on a busy machine
    seen: set[int] = set()

    def forget_what_was_counted(doing: str) -> None:
        if doing == "preparing the timing of filter":
            seen.clear()

    def make() -> Any:
        def is_new(value: Any) -> Any:
            time.sleep(0.001)  # so long that not all elements of a round are kept
            known = int(value) in seen
            seen.add(int(value))
            return not known

        fresh = numbers(10_000).filter(lambda x: tf.numpy_function(is_new, [x], tf.bool))
        return fresh.batch(2, drop_remainder=True)

    timing = time_stages(trace(make), 0.5, forget_what_was_counted)
    assert timing.notes == ("filter ends after a while, so it was not timed",)
    assert "filter" not in {found.stage for found in timing.times}


@pytest.mark.usefixtures("short_chunks")
def test_records_that_end_with_zeros_stay_whole(tmp_path: Path) -> None:
    path = str(tmp_path / "data.tfrecord")
    with tf.io.TFRecordWriter(path) as writer:
        for record in range(20):
            writer.write(bytes([record, 0, 0, 0, 0, 0, 0, 0]))

    def make() -> Any:
        decoded = tf.data.TFRecordDataset(path).map(lambda x: tf.io.decode_raw(x, tf.int64)[0])
        return decoded.repeat().batch(2, drop_remainder=True)

    assert "map" in {time.stage for time in time_stages(trace(make), seconds=0.1).times}


def test_the_clock_leaves_out_other_programs() -> None:
    import threading

    def work() -> None:
        _spin(30_000)
        time.sleep(0.02)

    worker_may_begin, done = threading.Event(), threading.Event()

    def wait_then_work() -> None:
        worker_may_begin.wait()
        work()
        done.set()
        worker_may_begin.clear()
        time.sleep(0.5)

    thread = threading.Thread(target=wait_then_work)
    thread.start()
    before = cpu_time.start()
    worker_may_begin.set()
    done.wait()
    spent = cpu_time.spent_since(before)
    thread.join()
    # Each is what is left of two clocks: 30 and 20 ms, and the resolution of both.
    assert 25e6 <= spent.cpu < 45e6
    assert 15e6 <= spent.wait < 45e6


def test_a_pipeline_that_delivers_nothing() -> None:
    with pytest.raises(InputEndedError, match="ended after 0 batches"):
        count(trace(lambda: numbers().filter(lambda x: tf.less(x, 0)).repeat().batch(2)), 0.1)
