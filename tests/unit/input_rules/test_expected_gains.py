"""Expected gains of changes from the times of the stages."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from input_rules.pipeline import Pipeline, Stage, StageTime
from input_rules.rules.base import Context, parallel_gain, sharding_gain, time_saving_gain


def pipeline(*operations: str, **of_map: Any) -> Pipeline:
    """A chain in which TensorFlow changes nothing by itself."""
    stages = []
    for position, op in enumerate(operations):
        attributes = {"optimized": False, **(of_map if op == "map" else {})}
        before = (operations[position - 1],) if position else ()
        stages.append(Stage(op, op, position, before, f"data.py:{position}", attributes))
    return Pipeline("tensorflow", tuple(stages), samples_per_element=8)


def context(cpus: int = 4, **times: float) -> Context:
    return Context(cpus=cpus, times={name: StageTime(name, us, 0.0) for name, us in times.items()})


def test_calls_side_by_side_gain_what_the_rest_of_the_pipeline_allows() -> None:
    chain = pipeline("range", "map", "batch")
    stage = chain.by_name["map"]
    # On one CPU 100 us; on 2 both are busy for 50 us; on 20 the thread that makes batches takes 10 us.
    for cpus, times in [(1, 1.0), (2, 2.0), (4, 4.0), (20, 10.0)]:
        gain = parallel_gain(chain, context(cpus, map=90.0, batch=10.0), stage)
        assert gain is not None
        assert gain.times == pytest.approx(times, rel=0.01)
        assert gain.kind == "expected"
        assert gain.cpus == cpus
    assert (
        str(parallel_gain(chain, context(1, map=90.0, batch=10.0), stage)) == "expected: nothing with 1 CPU"
    )
    assert gain.at_most


def test_optimizations_of_tensorflow_itself_are_no_gain() -> None:
    chain = pipeline("range", "map", "batch", optimized=True, stateful=False)
    stages = tuple(replace(s, attributes={**s.attributes, "optimized": True}) for s in chain.stages)
    gain = parallel_gain(replace(chain, stages=stages), context(4, map=90.0, batch=10.0), stages[1])
    assert gain is not None
    assert gain.times == pytest.approx(1.0)


def test_waiting_is_gained_on_one_cpu_too() -> None:
    times = {"map": StageTime("map", 10.0, 80.0), "batch": StageTime("batch", 10.0, 0.0)}
    chain = pipeline("range", "map", "batch")
    gain = time_saving_gain(chain, Context(cpus=1, times=times), [chain.by_name["map"]])
    assert gain is not None
    assert gain.times == pytest.approx(10.0)


def test_where_almost_nothing_is_left_there_is_no_figure() -> None:
    chain = pipeline("range", "map", "batch")
    gain = time_saving_gain(chain, context(1, map=4607.0, batch=1.4), [chain.by_name["map"]])
    assert gain is not None
    assert gain.times is None
    assert gain.text.startswith("more than 20 times the rate with 1 CPU, as almost nothing else takes time")
    # Threads bound what calls side by side give, whatever is left.
    calls = parallel_gain(chain, context(64, map=4607.0, batch=1.4), chain.by_name["map"])
    assert calls is not None
    assert calls.times == pytest.approx(64, rel=0.1)


def test_work_of_the_first_epoch_is_gained_there() -> None:
    times = {
        "range": StageTime("range", 0.0, 0.0, once=True),
        "map": StageTime("map", 60.0, 0.0, once=True),
        "cache": StageTime("cache", 0.0, 0.0),
        "batch": StageTime("batch", 20.0, 0.0),
    }
    chain = pipeline("range", "map", "cache", "batch")
    gain = time_saving_gain(chain, Context(cpus=2, times=times), [chain.by_name["map"]])
    assert gain is not None
    assert gain.times == pytest.approx(4.0)
    assert gain.text.startswith("about 4.00 times the rate with 2 CPUs in the first epoch, not counting")
    assert not gain.at_most, "saving a stage may save hand-offs, too"


def test_work_that_every_worker_throws_away() -> None:
    gain = sharding_gain(3, "what stands before it")
    assert (gain.times, gain.at_most) == (3.0, True)
    assert gain.text.startswith("up to 3 times the rate in a job of 3 workers")


def test_without_times_there_are_bounds() -> None:
    chain = pipeline("flat_map", "map", "batch")
    files, calls = (parallel_gain(chain, Context(), chain.by_name[name]) for name in ("flat_map", "map"))
    assert files is not None
    assert calls is not None
    assert (files.times, files.at_most) == (4.0, True)
    assert calls.text.startswith("at most as many times the rate as a worker has CPUs")
    stages = tuple(replace(s, attributes={"stateful": False}) for s in chain.stages)
    by_itself = parallel_gain(replace(chain, stages=stages), Context(), stages[1])
    assert by_itself is not None
    assert by_itself.text == "nothing, as TensorFlow does this by itself here"
    assert str(time_saving_gain(chain, Context(), [chain.by_name["map"]])) == (
        "expected: the time that this takes is saved"
    )
