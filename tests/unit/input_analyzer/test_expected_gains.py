"""Gains of findings: what is expected by the times of the stages, and what was measured."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, replace
from functools import partial
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from input_analyzer.analysis import Finding, Gain, StageCost
from input_analyzer.analyze import Examined, applied_note
from input_analyzer.applying import COMPARED, as_mended, optional
from input_analyzer.findings.context import Context
from input_analyzer.findings.expected_gains import not_repeated, side_by_side, spared
from input_analyzer.gains import BOUNDED, bound_gain, compared_sets, measure_gains, rate_gain, with_gains
from input_analyzer.handover import InputProgram
from input_analyzer.lanes import Lane
from input_analyzer.measure.copies import Launch
from input_analyzer.measure.link import Order
from input_analyzer.pace import time_us
from input_analyzer.pipeline import Pipeline, Stage, StageTime
from input_analyzer.tf.bounds import without_cost
from input_analyzer.tf.compare import compare
from input_analyzer.tf.examine import examine
from input_analyzer.tf.graph import trace
from input_analyzer.tf.mend import MENDABLE
from input_analyzer.tf.nodes import in_order

AUTOTUNE = tf.data.AUTOTUNE


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
        gain = side_by_side(chain, context(cpus, map=90.0, batch=10.0), stage)
        assert gain is not None
        assert gain.times == pytest.approx(times, rel=0.01)
        assert gain.kind == "expected"
        assert gain.cpus == cpus
    assert str(side_by_side(chain, context(1, map=90.0, batch=10.0), stage)) == "expected: nothing with 1 CPU"
    assert gain.at_most


def test_what_tensorflow_does_by_itself_is_no_gain() -> None:
    chain = pipeline("range", "map", "batch", optimized=True, stateful=False)
    stages = tuple(replace(s, attributes={**s.attributes, "optimized": True}) for s in chain.stages)
    gain = side_by_side(replace(chain, stages=stages), context(4, map=90.0, batch=10.0), stages[1])
    assert gain is not None
    assert gain.times == pytest.approx(1.0)


def test_waiting_is_gained_on_one_cpu_too() -> None:
    times = {"map": StageTime("map", 10.0, 80.0), "batch": StageTime("batch", 10.0, 0.0)}
    chain = pipeline("range", "map", "batch")
    gain = spared(chain, Context(cpus=1, times=times), [chain.by_name["map"]])
    assert gain is not None
    assert gain.times == pytest.approx(10.0)


def test_where_almost_nothing_is_left_there_is_no_figure() -> None:
    chain = pipeline("range", "map", "batch")
    gain = spared(chain, context(1, map=4607.0, batch=1.4), [chain.by_name["map"]])
    assert gain is not None
    assert gain.times is None
    assert gain.text.startswith("more than 20 times the rate with 1 CPU, as almost nothing else takes time")
    # Threads bound what calls side by side give, whatever is left.
    calls = side_by_side(chain, context(64, map=4607.0, batch=1.4), chain.by_name["map"])
    assert calls is not None
    assert calls.times == pytest.approx(64, rel=0.1)


def test_what_is_done_in_the_first_epoch_is_gained_there() -> None:
    times = {
        "range": StageTime("range", 0.0, 0.0, once=True),
        "map": StageTime("map", 60.0, 0.0, once=True),
        "cache": StageTime("cache", 0.0, 0.0),
        "batch": StageTime("batch", 20.0, 0.0),
    }
    chain = pipeline("range", "map", "cache", "batch")
    gain = spared(chain, Context(cpus=2, times=times), [chain.by_name["map"]])
    assert gain is not None
    assert gain.times == pytest.approx(4.0)
    assert gain.text.startswith(
        "about 4.00 times the rate with 2 CPUs in the first epoch, beside what handing"
    )
    assert not gain.at_most, "to spare a stage may spare hand-overs"


def test_work_that_every_worker_throws_away() -> None:
    gain = not_repeated(3, "what stands before it")
    assert (gain.times, gain.at_most) == (3.0, True)
    assert gain.text.startswith("up to 3 times the rate in a job of 3 workers")


def test_without_times_there_are_bounds() -> None:
    chain = pipeline("flat_map", "map", "batch")
    files, calls = (side_by_side(chain, Context(), chain.by_name[name]) for name in ("flat_map", "map"))
    assert files is not None
    assert calls is not None
    assert (files.times, files.at_most) == (4.0, True)
    assert calls.text.startswith("at most as many times the rate as a worker has CPUs")
    stages = tuple(replace(s, attributes={"stateful": False}) for s in chain.stages)
    by_itself = side_by_side(replace(chain, stages=stages), Context(), stages[1])
    assert by_itself is not None
    assert by_itself.text == "nothing, as TensorFlow does so by itself here"
    assert str(spared(chain, Context(), [chain.by_name["map"]])) == (
        "expected: the time that this takes is spared"
    )


def finding(identifier: str, gain: Gain | None = None) -> Finding:
    return Finding(identifier, "warning", "map", "data.py:7", "it is slow", "map(fast)", gain)


def test_what_is_compared() -> None:
    assert {name for name in COMPARED if not name.startswith("loader-")} < MENDABLE
    assert compared_sets([finding("shard-missing"), finding("dtype-wide")]) == ()
    assert compared_sets([finding("prefetch-empty"), finding("shard-missing")]) == (("prefetch-empty",),)
    several = [finding(name) for name in ("cycle-length-fixed", "prefetch-empty", "cycle-length-fixed")]
    names = ("cycle-length-fixed", "prefetch-empty")
    assert compared_sets([*several, finding("repeat-missing")]) == (
        *((name,) for name in names),
        (*names, "repeat-missing"),
    )


def test_measured_gains_in_words() -> None:
    assert str(rate_gain((1.82, 1.7, 1.95), 2)) == "measured: 1.82 times the rate with 2 CPUs (1.70 to 1.95)"
    assert rate_gain((1.0, 0.97, 1.02), 1).text == "no difference with 1 CPU (0.97 to 1.02 times the rate)"
    bound = bound_gain((55.0, 34.0, 89.0), 1, "read with records in memory")
    assert bound.text == (
        "at most about 55 times the rate with 1 CPU (34 to 89), read with records in memory, which spares "
        "calls and handing elements over, too"
    )
    assert "noise" in rate_gain((1.1, 0.7, 1.6), 1).text
    kept = finding("dtype-wide", Gain("expected", "less"))
    mixing = finding("shuffle-buffer-small", Gain("not-speed", "records are mixed"))
    found = with_gains([kept, mixing], {"shuffle-buffer-small": (0.9, 0.85, 0.95)}, 2)
    assert found[0] == kept
    assert found[1].gain == Gain(
        "measured", "0.90 times the rate with 2 CPUs (0.85 to 0.95); records are mixed", 0.9, 0.85, 0.95, 2
    )
    assert Finding.of(json.loads(json.dumps(asdict(found[1])))) == found[1]
    alone, ratio = [finding("cycle-length-fixed")], {"cycle-length-fixed": (0.9, 0.85, 0.95)}
    slower = with_gains(alone, ratio, 2, ["cycle-length-fixed"])
    assert str(slower[0].gain).endswith("(0.85 to 0.95); leave it as it is here")
    twice = with_gains([finding("cycle-length-fixed")] * 2, {"cycle-length-fixed": (2.0, 1.9, 2.1)}, 2)
    assert str(twice[0].gain).endswith("(1.90 to 2.10), all 2 of its kind together")


@pytest.mark.parametrize("ended", [False, True])
def test_only_mends_for_speed_are_advised_against_together(
    ended: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The data must repeat although the input is slower then."""
    found = [finding("prefetch-empty"), finding("cycle-length-fixed")]
    found += [finding("repeat-missing", Gain("not-speed", "all steps"))] if ended else []
    monkeypatch.setattr("input_analyzer.gains._compare", lambda order, *rest: [SAME, SAME, SLOWER])
    launch = Launch((), {}, 20.0, None, "here")
    gains = measure_gains(tuple(found), launch, (0,), 1.0, (1 << 30, 1), lambda doing: None)
    assert str(gains.together).endswith("leave it as it is here") is not ended
    assert ("what is not for speed among them is to be mended all the same" in str(gains.together)) is ended


def test_gains_that_cannot_be_measured_leave_what_is_expected() -> None:
    expected = (finding("prefetch-empty", Gain("expected", "up to twice the rate", 2.0)),)
    launch = Launch((sys.executable, "-c", "pass"), dict(os.environ), 20.0, None, "here")
    cpus = tuple(sorted(os.sched_getaffinity(0)))
    failed = measure_gains(expected, launch, cpus, 1.0, (1 << 30, 1), lambda doing: None)
    assert failed.findings == expected
    assert failed.notes[0].startswith("Gains could not be measured: the program ended")
    full = measure_gains(expected, launch, cpus, 1.0, (1 << 30, 1 << 29), lambda doing: None)
    assert full.findings == expected
    assert full.notes == ("Gains were not measured: the input does not fit into the memory twice.",)


SLOWER, FASTER, SAME = (0.43, 0.4, 0.5), (1.8, 1.7, 1.9), (1.0, 0.98, 1.02)


def test_mends_that_make_it_slower_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    found = (
        finding("parallel-calls-missing", Gain("expected", "twice", 2.0)),
        finding("prefetch-missing"),
        finding("cycle-length-fixed"),
        finding("shuffle-buffer-small", Gain("not-speed", "records are mixed")),
        finding("repeat-missing", Gain("not-speed", "all steps")),
    )
    for_speed = ("parallel-calls-missing", "prefetch-missing", "cycle-length-fixed")
    assert optional(found) == for_speed
    sets = compared_sets(found)
    ratios = [SLOWER, FASTER, (0.9, 0.8, 1.01), SLOWER, FASTER]
    compared: list[Any] = []

    def of_one(traced: Any, names: Any, seconds: float, say: Any) -> Any:
        compared.append(names)
        return ratios[len(compared) - 1]

    monkeypatch.setattr("input_analyzer.tf.compare._compare_one", of_one)
    source = program(lambda: tf.data.Dataset.range(3))
    assert compare(source, sets, 1.0, lambda doing: None, for_speed) == ratios
    assert compared[:-1] == [*sets[:-1]]
    assert compared[-1] == (
        "prefetch-missing",
        "cycle-length-fixed",
        "shuffle-buffer-small",
        "repeat-missing",
    )

    monkeypatch.setattr("input_analyzer.gains._compare", lambda order, *rest: ratios)
    launch = Launch((), {}, 20.0, None, "here")
    gains = measure_gains(found, launch, (0,), 1.0, (1 << 30, 1), lambda doing: None)
    assert gains.left_out == ("parallel-calls-missing",)
    of_calls, of_cycle, of_buffer = (
        next(one for one in gains.findings if one.id == name)
        for name in ("parallel-calls-missing", "cycle-length-fixed", "shuffle-buffer-small")
    )
    assert (of_calls.severity, of_cycle.severity, of_buffer.severity) == ("info", "info", "warning")
    assert str(of_calls.gain).endswith("leave it as it is here")
    assert str(of_cycle.gain).endswith("leave it as it is here")
    assert [one.severity for one in gains.findings] == ["warning"] * 3 + ["info"] * 2
    assert not str(gains.together).endswith("leave it as it is here")
    facts = {
        "applied": ["calls", "prefetch", "cycle", "repeat"],
        "applied_by": {"parallel-calls-missing": ["calls", "cycle"], "cycle-length-fixed": ["cycle"]},
    }
    said = applied_note(Examined(facts, 0), gains.left_out)
    assert said.startswith("Measured with --apply: prefetch; cycle; repeat. Left as it is, as its mend ")
    assert ": parallel-calls-missing. The times" in said
    assert "Left" not in applied_note(Examined(facts, 0), ())


@pytest.mark.parametrize(
    ("ratio", "tasks", "mended"), [(SLOWER, 2, False), (SLOWER, 9, True), (SAME, 2, True)]
)
def test_memory_is_spared_where_that_is_no_slower_or_memory_is_short(
    ratio: Any, tasks: int, mended: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    spares = Gain("not-speed", "the memory of 8 processes is spared")
    many = replace(finding("loader-workers-many", spares), value=8)
    ordered = []
    monkeypatch.setattr(
        "input_analyzer.gains._compare", lambda order, *rest: ordered.append(order) or [ratio]
    )
    launch = Launch((), {}, 20.0, None, "here")
    gains = measure_gains((many,), launch, (0, 1), 1.0, (1 << 30, 1 << 27), lambda doing: None, tasks)
    assert ordered[0].mends == (("loader-workers-many:4",),), "workers for each CPU"
    assert ordered[0].optional == (("loader-workers-many:4",) if tasks == 2 else ())
    assert gains.left_out == (() if mended else ("loader-workers-many",))
    assert str(gains.findings[0].gain).endswith("leave it as it is here") is not mended
    assert bool(gains.notes) is (ratio is SLOWER and mended)
    assert not gains.notes or "loader-workers-many makes a task slower, but the memory" in gains.notes[0]


def test_the_lanes_of_a_mended_loader_are_those_of_its_workers() -> None:
    def cost(name: str, us: float, threads: int) -> StageCost:
        return StageCost(name, name, 0, us, us, 0.0, lane=Lane(int(name != "workers"), threads))

    stages = (cost("getitem", 800.0, 16), cost("workers", 10.0, 1))
    many = replace(finding("loader-workers-many"), value=8)
    mended = as_mended(stages, [many, finding("shard-missing")], 2)
    assert [stage.lane.threads_on(2) for stage in mended] == [8, 1]
    assert [stage.lane.threads_on(4) for stage in mended] == [16, 1]
    assert as_mended(stages, [finding("shard-missing")], 2) == stages
    alone = as_mended((cost("getitem", 800.0, 1),), [many], 2)
    assert time_us(alone, 2) == pytest.approx(400)


def test_an_examination_says_what_each_mend_changes() -> None:
    def make() -> Any:
        return tf.data.Dataset.range(50).map(tf.nn.relu).shuffle(2, 1).batch(5, drop_remainder=True)

    order = Order(purpose="examine", socket="", stage_seconds=0.0)
    examination = examine(program(make), order, lambda doing: None)
    assert set(examination.applied_by) == {"parallel-calls-missing", "prefetch-missing", "shard-missing"}
    for changes in examination.applied_by.values():
        assert changes
        assert set(changes) < set(examination.applied)


def program(make: Callable[[], Any]) -> InputProgram:
    return InputProgram("tensorflow", make, lambda shard: make(), lambda shard: iter(()), eager=True)


def slow(x: Any) -> Any:
    """Waits, so that what else the machine does changes little."""

    def wait(value: Any) -> Any:
        time.sleep(0.004)
        return value

    return tf.ensure_shape(tf.numpy_function(wait, [x], x.dtype), x.shape)


def test_rates_are_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    # Python that sleeps is steady from the first batch on; as it might do more, a run would leave it alone.
    monkeypatch.setattr("input_analyzer.tf.mend.trouble", lambda node, functions: None)
    monkeypatch.setattr("input_analyzer.tf.compare.TURN_S", 0.1)
    monkeypatch.setattr("input_analyzer.tf.compare.WARM_UP_S", 0.1)

    def files_in_turns() -> Any:
        # Six times the same; of two at once, TensorFlow reads one after the other.
        inner = tf.data.Dataset.range(6).interleave(
            lambda x: tf.data.Dataset.range(5).map(slow), cycle_length=2, block_length=5
        )
        return inner.batch(5, drop_remainder=True)

    def one_after_the_other() -> Any:
        options = tf.data.Options()
        options.autotune.enabled = False
        options.experimental_optimization.apply_default_optimizations = False
        return files_in_turns().repeat().with_options(options)

    told: list[str] = []
    calls, nothing = compare(
        program(files_in_turns), [("parallel-calls-missing",), ("cycle-length-fixed",)], 1.0, told.append
    )
    assert calls is not None
    assert calls[0] > 1.3, "the files of a cycle are read at once, and more of them"
    assert calls[1] <= calls[0] <= calls[2]
    assert nothing is None, "an interleave without parallel calls has no such finding to mend"
    assert "measuring what mending parallel-calls-missing gives" in told
    (ahead,) = compare(program(one_after_the_other), [("prefetch-missing",)], 1.0, told.append)
    assert ahead is not None
    assert ahead[0] > 1.4, "a batch is made while a training of the same time works on the last one"
    assert ahead[1] < 2.1, "it cannot be more than twice, whatever else the machine does"


def per_record(function: Callable[..., Any], middle: Callable[[Any], Any] = lambda d: d) -> Any:
    records = tf.data.Dataset.from_tensor_slices((tf.zeros([512, 4]), tf.range(512)))
    return middle(records.map(function)).repeat().batch(32, drop_remainder=True).prefetch(AUTOTUNE)


def python(x: Any, y: Any) -> tuple[Any, Any]:
    return tf.ensure_shape(tf.numpy_function(lambda value: value, [x], tf.float32), [4]), y


def other_structure(x: Any, y: Any) -> Any:
    return {"features": tf.tanh(x), "label": tf.strings.as_string(y), "size": tf.size(x)}


def from_python() -> Any:
    spec = (tf.TensorSpec([4]), tf.TensorSpec([], tf.int32))
    rows = tf.data.Dataset.from_generator(
        lambda: ((np.full(4, n, np.float32), n) for n in range(64)), output_signature=spec
    )
    return rows.map(lambda x, y: (x + 1.0, y)).repeat().batch(8, drop_remainder=True)


@pytest.mark.parametrize(
    ("make", "op", "drawn"),
    [
        (lambda: per_record(other_structure, lambda d: d.shuffle(64, seed=1).cache()), "map", True),
        (lambda: per_record(python, lambda d: d.shuffle(64, seed=1)), "map", True),
        (lambda: per_record(python, lambda d: d.filter(lambda x, y: y >= 0)), "map", False),
        (from_python, "from_generator", False),
    ],
)
def test_an_input_without_what_a_stage_costs(
    make: Callable[[], Any], op: str, drawn: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("input_analyzer.tf.bounds.KEEPING_S", 0.02)
    traced = trace(make, eager=True)
    stages = [stage for stage in traced.pipeline.stages if stage.op == op]
    bounded = without_cost(traced, stages)
    assert bounded is not None
    assert bounded.dataset.element_spec == traced.dataset.element_spec
    last = tf.data.experimental.to_variant(bounded.dataset).op
    kinds = {node.type for node in in_order(last)}
    assert ("ShuffleDatasetV3" in kinds) is drawn, "what stands before such a map goes on being drawn"
    assert {"ScanDataset", "CacheDataset"} <= kinds if drawn else "CacheDataset" in kinds
    nodes = {node.name for node in in_order(last)}
    assert nodes.isdisjoint(traced.nodes[stage.name][-1].name for stage in stages)
    before, after = (
        batches_of(traced.graph, dataset, fed)
        for dataset, fed in ((traced.dataset, {}), (bounded.dataset, bounded.fed))
    )
    assert len(after) == len(before) == 40
    for one, other in zip(before, after, strict=True):
        assert [part.shape for part in one] == [part.shape for part in other]


def test_a_cache_spares_what_stands_before_it() -> None:
    def make() -> Any:
        return (
            tf.data.Dataset.range(40).map(lambda x: tf.zeros(5000) + tf.cast(x, tf.float32)).repeat().batch(2)
        )

    traced = trace(make, eager=True)
    stages = [stage for stage in traced.pipeline.stages if stage.op == "map"]
    bounded = without_cost(traced, stages, cached=True)
    assert bounded is not None
    kinds = [node.type for node in in_order(tf.data.experimental.to_variant(bounded.dataset).op)]
    assert "CacheDataset" in kinds
    assert "RangeDataset" not in kinds
    batches = batches_of(traced.graph, bounded.dataset, bounded.fed)
    assert {batch[0].shape for batch in batches} == {(2, 5000)}


def batches_of(graph: Any, dataset: Any, fed: Any) -> list[Any]:
    with graph.as_default():
        iterator = tf.compat.v1.data.make_initializable_iterator(dataset)
        drawn = tf.nest.flatten(iterator.get_next())
    with tf.compat.v1.Session(graph=graph) as session:
        session.run(iterator.initializer, fed)
        return [session.run(drawn) for _ in range(40)]


def test_what_calls_cost_for_every_record_is_in_the_most_that_can_be_gained(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """By the times of its stages alone, such a map gives a fraction of what it does behind batch()."""
    monkeypatch.setattr("input_analyzer.tf.compare.TURN_S", 0.05)
    monkeypatch.setattr("input_analyzer.tf.compare.WARM_UP_S", 0.1)
    make = partial(per_record, lambda x, y: (tf.tanh(x), y))
    (stage,) = [stage for stage in trace(make, eager=True).pipeline.stages if stage.op == "map"]
    places = {"map-before-batch": [(stage.op, stage.source)]}
    (most,) = compare(program(make), [("map-before-batch",)], 0.6, lambda doing: None, (), places)
    assert most is not None
    assert most[1] > 2.0
    found = replace(finding("map-before-batch"), source=stage.source)
    gain = with_gains([found], {"map-before-batch": most}, 2)[0].gain
    assert gain is not None
    assert gain.at_most
    assert gain.text.startswith("at most about ")


def test_only_the_author_can_mend_what_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not set(BOUNDED) & set(COMPARED)
    ordered: list[Order] = []
    ratios: list[Any] = [FASTER, (1.0, 0.99, 1.01)]
    monkeypatch.setattr("input_analyzer.gains._compare", lambda order, *rest: ordered.append(order) or ratios)
    found = (finding("cache-would-fit"), finding("prefetch-empty"))
    gains = measure_gains(
        found, Launch((), {}, 20.0, None, "here"), (0,), 1.0, (1 << 30, 1), lambda doing: None
    )
    assert ordered[0].mends == (("cache-would-fit",), ("prefetch-empty",))
    assert ordered[0].bounds == {"cache-would-fit": (("map", "data.py:7"),)}
    cache, ahead = gains.findings
    assert str(cache.gain).startswith(
        "measured: at most about 1.80 times the rate with 1 CPU (1.70 to 1.90), from "
    )
    assert (ahead.severity, str(ahead.gain)[-len("leave it as it is here") :]) == (
        "info",
        "leave it as it is here",
    )
    assert gains.together is None


def test_what_is_too_slow_is_not_compared() -> None:
    def make() -> Any:
        return tf.data.Dataset.range(100).map(slow).batch(20)

    assert compare(program(make), [("prefetch-missing",)], 0.5, lambda doing: None) == [None]
