from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cgc.manifest import REPORT_JSON
from input_analyzer import analyze
from input_analyzer.analysis import Layout, Measurement, Recommendation, Target
from input_analyzer.analyze import ExaminedInput
from input_analyzer.conclusions import (
    HEADROOM,
    Limits,
    add_interval,
    find_bottleneck,
    list_layouts,
    predict_layouts,
    predict_rate,
    recommend,
    usable_fraction,
)
from input_analyzer.gains import Gains
from input_analyzer.measure.copies import Launch
from input_analyzer.rate_model import RateModel
from input_analyzer.report.wording import file_notes, more_nodes_notes, title, verdict
from input_rules.rules.sharding import Split
from input_rules.throughput import Lane, StageCost, sample_time, time_us, unaccounted_us

models = st.builds(
    RateModel,
    st.floats(1e-6, 1e-3),
    st.floats(1e-6, 1e-3),
    st.just(1.0),
    st.floats(0, 0.2),
    st.floats(0, 0.01),
)
limits = st.builds(
    Limits,
    st.integers(1, 5),
    st.integers(1, 24),
    st.just(100 << 30),
    st.integers(1 << 28, 40 << 30),
    st.lists(st.sampled_from([1, 2, 4, 8]), min_size=1, max_size=3, unique=True).map(tuple),
)


def size(layout: Layout) -> tuple[int, int]:
    return layout.nodes, layout.nodes * layout.tasks_per_node * layout.cpus_per_task


@settings(max_examples=40)
@given(models, limits, st.floats(1e2, 1e8))
def test_the_smallest_layout_that_reaches_the_target_is_taken(
    model: RateModel, limit: Limits, target: float
) -> None:
    candidates = predict_layouts(model, limit)
    chosen = recommend(candidates, target)
    assert chosen.headroom == pytest.approx(chosen.samples_per_s / target - 1)
    smaller = [p for p in candidates if size(p.layout) < size(chosen.layout)]
    best = max(p.samples_per_s for p in candidates)
    if best >= target * (1 + HEADROOM):
        assert chosen.samples_per_s >= target * (1 + HEADROOM)
        assert all(p.samples_per_s < target * (1 + HEADROOM) for p in smaller)
        assert chosen.utilization == 1
    else:
        assert chosen.samples_per_s >= 0.98 * best
        assert chosen.utilization == pytest.approx(min(1, chosen.samples_per_s / target))
        assert (chosen.samples_per_s >= target) == (best >= target)


@settings(max_examples=40)
@given(limits)
def test_no_layout_takes_more_than_there_is(limit: Limits) -> None:
    for layout in list_layouts(limit):
        assert 1 <= layout.nodes <= limit.nodes
        assert layout.cpus_per_task in limit.cpus_per_task
        if layout.tasks_per_node > 1:
            assert layout.tasks_per_node * layout.cpus_per_task <= limit.node_cpus
            assert layout.tasks_per_node * limit.memory_per_task_bytes <= limit.node_memory_bytes


@settings(max_examples=40)
@given(models, limits)
def test_more_nodes_never_predict_less(model: RateModel, limit: Limits) -> None:
    for layout in list_layouts(limit):
        more = Layout(layout.nodes + 1, layout.tasks_per_node, layout.cpus_per_task)
        assert predict_rate(model, more) >= predict_rate(model, layout)


def test_the_chief_streams_nothing() -> None:
    model = RateModel(1e-3, 0.0)
    assert predict_rate(model, Layout(1, 4, 1)) == pytest.approx(3000)
    assert predict_rate(model, Layout(3, 4, 1)) == pytest.approx(11000)
    assert predict_rate(model, Layout(2, 1, 1)) == pytest.approx(1000)


def test_a_job_of_one_task_is_considered_only_where_nothing_else_fits() -> None:
    one_cpu = Limits(1, 1, 8 << 30, 1 << 30, (1,))
    assert list(list_layouts(one_cpu)) == [Layout(1, 1, 1)]
    two_cpus = Limits(1, 2, 8 << 30, 1 << 30, (1, 2))
    assert list(list_layouts(two_cpus)) == [Layout(1, 2, 1)]


def test_memory_limits_the_tasks_of_a_node() -> None:
    limit = Limits(1, 16, 10 << 30, 3 << 30, (1,))
    assert limit.most_tasks(1) == 3
    assert limit.memory_binds(1)
    assert not limit.memory_binds(8)


def test_no_layout_has_more_workers_than_there_are_files() -> None:
    limit = Limits(4, 2, 64 << 30, 1 << 30, (1, 2), files=5)
    found = list(list_layouts(limit))
    assert max(layout.workers for layout in found) == 5
    assert len(found) == sum(one.workers <= 5 for one in list_layouts(replace(limit, files=None)))
    assert list(list_layouts(replace(limit, files=1))) == [
        Layout(1, 2, 1),
        Layout(2, 1, 1),
        Layout(2, 1, 2),
    ]


def test_files_that_keep_workers_idle_are_named_as_the_limit() -> None:
    limit, split = Limits(4, 2, 64 << 30, 1 << 30, (1,), files=5), Split(5, "shard", "data.py:7")
    (note,) = file_notes(split, limit)
    assert note.startswith(
        "The input has 5 files, each of which is read by one worker (shard at data.py:7), and the "
    )
    assert "room for 7 workers. Additional workers would have nothing to read" in note
    assert "write the data to more files, or shard the" in note.lower()
    assert file_notes(Split(7, "shard", None), replace(limit, files=7)) == ()
    assert file_notes(None, replace(limit, files=None)) == ()


@settings(max_examples=40)
@given(st.integers(1, 200), st.integers(1, 200))
def test_workers_read_an_epoch_as_fast_as_the_one_with_the_most_files(files: int, workers: int) -> None:
    shares = [len(range(index, files, workers)) for index in range(workers)]
    assert usable_fraction(files, workers) == pytest.approx(files / (max(shares) * workers))


def test_a_worker_more_that_shares_files_unevenly_is_no_gain() -> None:
    limit = Limits(1, 8, 64 << 30, 1 << 30, (1,), files=6)
    model = RateModel(1e-3, 0.0)
    found = predict_layouts(model, limit)
    assert [round(one.samples_per_s) for one in found] == [1000, 2000, 3000, 3000, 3000, 6000]
    # 5 workers deliver 5000 samples/s, but an epoch takes as long as with 3.
    assert recommend(found, 4000.0).layout.workers == 6
    assert recommend(found, 2500.0).layout.workers == 3
    less = predict_layouts(model, replace(limit, node_cpus=6))
    assert recommend(less, 4000.0).layout.workers == 3
    assert recommend(less, 4000.0).utilization == pytest.approx(0.75)


def test_without_a_target_the_highest_rate_counts_and_no_cpus_are_wasted() -> None:
    saturated = RateModel(1e-3, 0.0, sigma=0.99)
    candidates = predict_layouts(saturated, Limits(1, 16, 1 << 40, 1, (1,)))
    chosen = recommend(candidates, None)
    assert chosen.headroom is None
    assert chosen.layout.tasks_per_node < 5


def test_nodes_that_would_be_enough_are_reported() -> None:
    model, limits = RateModel(1e-3, 0.0), Limits(1, 4, 64 << 30, 1 << 30, (1,))
    target = Target(9000.0, "given")
    found = recommend(predict_layouts(model, limits), target.samples_per_s)
    # 9,900 samples/s are 10 workers of 1,000, which 3 nodes have in addition to the chief.
    (note,) = more_nodes_notes(model, limits, target, found)
    assert note.startswith("3 nodes like the measured one ")
    assert "exceed the target by 10 %" in note
    assert "--available-nodes=3" in note
    enough = recommend(predict_layouts(model, replace(limits, nodes=3)), target.samples_per_s)
    assert more_nodes_notes(model, limits, target, enough) == ()
    assert more_nodes_notes(model, limits, None, found) == ()
    assert more_nodes_notes(model, replace(limits, files=5), target, found) == (), "files are the limit"


def test_the_interval_is_that_of_the_workers_on_the_node_of_the_chief() -> None:
    rows = (Measurement(1, 1, 1000.0, 600.0, 1400.0), Measurement(2, 1, 1500.0, 1470.0, 1530.0))

    def interval(layout: Layout) -> tuple[float | None, float | None]:
        found = add_interval(Recommendation(layout, 100.0, None, None), rows, 0.0)
        return found.low, found.high

    assert interval(Layout(1, 2, 1)) == (pytest.approx(60), pytest.approx(140)), "one worker, and the chief"
    assert interval(Layout(1, 3, 1)) == (pytest.approx(98), pytest.approx(102))
    assert interval(Layout(2, 2, 1)) == (pytest.approx(98), pytest.approx(102)), "two on the second node"
    assert interval(Layout(3, 1, 1)) == (pytest.approx(60), pytest.approx(140)), (
        "none in addition to the chief"
    )
    assert interval(Layout(1, 1, 1)) == (pytest.approx(60), pytest.approx(140)), "in the chief's process"


PUBLISHED = 25_600_000 / 53.424
"""Samples/s of FC-MNIST with csrun_wse on five nodes (argonne-lcf/user-guides)."""
ESTIMATED = 1_270_553.1
"""What a compile report of the same network says (ALCF's documentation)."""


@pytest.mark.parametrize(("times", "bound"), [(1.0, True), (2.5, True), (2.9, False)])
def test_published_rates_of_fc_mnist_are_judged_input_bound(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, times: float, bound: bool
) -> None:
    """The verdict is that of the analyzer; an input that is faster by enough is no bottleneck.

    Five nodes with 16 tasks, the chief among them, deliver a multiple of the published rate.
    """
    one = times * PUBLISHED / 79
    report = tmp_path / "cs_0123" / REPORT_JSON
    report.parent.mkdir()
    report.write_text(json.dumps({"overall": {"samples_per_s": ESTIMATED}}))
    measured = tuple(
        Measurement(tasks, 1, tasks * one, 0.98 * tasks * one, 1.02 * tasks * one, memory_per_task_bytes=1)
        for tasks in (1, 2, 4, 8, 16)
    )
    monkeypatch.setattr(analyze, "measure_gains", lambda findings, *arguments: Gains(findings))
    monkeypatch.setattr(analyze, "_measure", lambda *arguments: (measured, [], True))
    facts: dict[str, Any] = {
        "function": "train_input_fn",
        "source": None,
        "framework": "tensorflow",
        "batch_size": 256,
        "components": [],
        "epoch_samples": 60_000,
        "stages": [],
        "findings": [],
        "notes": [],
        "split": None,
        "order": "",
        "artifact_dirs": [str(tmp_path)],
    }
    words = ("python", "run.py", "--mode=train")
    request = analyze.Request(words, Launch(words, {}, 1.0, None, "here"), tuple(range(16)), 5, (1,))
    found = analyze.conclude(request, ExaminedInput(facts, 1), lambda doing, part: None)
    assert found.target is not None
    assert found.target.samples_per_s == ESTIMATED
    assert found.input_bound is bound
    assert title(found).startswith("Training will be input-bound" if bound else "The input is ")
    if times == 1:
        assert found.recommendation.layout == Layout(5, 16, 1)
        assert found.recommendation.utilization == pytest.approx(PUBLISHED / ESTIMATED, rel=0.02)
        assert "is expected to be busy 38 % of the time" in verdict(found)


def test_no_candidates_are_a_mistake_of_the_caller() -> None:
    with pytest.raises(ValueError, match="at least one layout"):
        recommend([], 1.0)


def cost(name: str, us: float, lane: Lane, *, waits: bool = False, once: bool = False) -> StageCost:
    cpu, wait = (0.0, us) if waits else (us, 0.0)
    return StageCost(name, "map", 0, us, cpu, wait, once, None, lane)


def test_a_dearer_stage_on_two_cpus_is_not_the_bottleneck() -> None:
    stages = [cost("one", 3000, Lane(0)), cost("many", 4000, Lane(1, 1, 1.0))]
    assert [find_bottleneck(stages, cpus).stage for cpus in (1, 2, 8)] == ["many", "one", "one"]
    assert find_bottleneck(stages, 2).reason == (
        "3,000 us of computing per sample, 43 % of the time of all stages; without it a task with 2 CPUs "
        "could be 1.75 times as fast"
    )
    assert "4,000 us of computing per sample" in find_bottleneck(stages, 1).reason
    assert time_us(stages, 1) == 7000
    assert time_us(stages, 2) == 3500
    assert time_us(stages, 4) == 3000
    assert sample_time(stages).serial_us == 3000
    assert sample_time(stages).parallel_us == 7000


def test_the_bottleneck_distinguishes_computing_from_waiting_and_no_figure_without_meaning() -> None:
    rest = cost("batch", 1.4, Lane(0))
    both = replace(cost("map", 4020, Lane(0)), cpu_us_per_sample=414.0, wait_us_per_sample=3606.0)
    assert find_bottleneck([both, rest], 1).reason == (
        "4,020 us per sample, of which 3,606 us waiting, 100 % of the time of all stages; almost nothing "
        "else takes time: without it a task with 1 CPU could be more than 20 times as fast"
    )
    assert find_bottleneck([cost("map", 123456, Lane(0), waits=True), rest], 1).reason.startswith(
        "123,456 us of waiting per sample, "
    )


def test_the_bottleneck_explains_no_more_than_it_takes() -> None:
    stages = [cost("one", 3, Lane(0)), cost("many", 4, Lane(1, 1, 1.0))]
    assert unaccounted_us(stages, 57.0) == 50.0
    assert unaccounted_us(stages, 6.0) == 0.0
    assert unaccounted_us(stages, None) is unaccounted_us([StageCost("map", "map", 0)], 9.0) is None
    assert find_bottleneck(stages, 1, 3.0).reason == (
        "4 us of computing per sample, 57 % of the time of all stages; without it, and with the same 3 us "
        "of CPU time outside of stages (calls, passing elements on), a task with 1 CPU could be 1.67 "
        "times as fast; a change that also saves some of the latter gains more"
    )
    lanes_alike = [cost("one", 3, Lane(0)), cost("other", 3, Lane(1)), cost("many", 4, Lane(2, 1, 1.0))]
    assert "times as fast" not in find_bottleneck(lanes_alike, 4, 2.0).reason, "none is as fast as without it"
    most = find_bottleneck(stages, 1, 50.0)
    assert most.stage == "many"
    assert "times as fast" not in most.reason
    assert "; more time is spent outside of stages: 50 us of CPU time per sample on calls" in most.reason


def test_what_waits_in_several_threads_is_divided_by_them() -> None:
    stages = [cost("far", 8000, Lane(0, 8), waits=True), cost("near", 1500, Lane(1), waits=True)]
    assert find_bottleneck(stages, 1).stage == "near"
    pooled = [cost("far", 8000, Lane(0, 8, pooled=True), waits=True), stages[1]]
    assert [find_bottleneck(pooled, cpus).stage for cpus in (1, 4, 8)] == ["far", "far", "near"]
    assert "in 4 threads" in find_bottleneck(pooled, 4).reason


def test_pythons_lock_keeps_threads_from_computing_side_by_side() -> None:
    stages = [cost("a", 2000, Lane(0, 1, 1.0, locked=True)), cost("b", 1000, Lane(1, 1, 1.0, locked=True))]
    assert time_us(stages, 8) == 3000
    assert find_bottleneck(stages, 8).stage == "a"


def test_the_largest_stage_of_the_slowest_thread_is_the_bottleneck() -> None:
    slow = [cost(name, us, Lane(0)) for name, us in (("a", 2000), ("b", 2500), ("c", 1800))]
    assert find_bottleneck([*slow, cost("d", 4000, Lane(1))], 4).stage == "b"
    assert find_bottleneck([*slow, cost("d", 9000, Lane(1), once=True)], 4).stage == "b"
    assert find_bottleneck([cost("d", 9000, Lane(1), once=True)], 4) is None
