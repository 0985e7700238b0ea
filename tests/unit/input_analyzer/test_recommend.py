from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from input_analyzer.analysis import Layout, Target
from input_analyzer.analyze import file_notes
from input_analyzer.findings.sharding import Split
from input_analyzer.rate_model import RateModel
from input_analyzer.recommend import HEADROOM, Limits, layouts, predict, predictions, recommend

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


@settings(deadline=None, max_examples=40)
@given(models, limits, st.floats(1e2, 1e8))
def test_the_smallest_layout_that_reaches_the_target_is_taken(
    model: RateModel, limit: Limits, target: float
) -> None:
    candidates = predictions(model, limit)
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


@settings(deadline=None, max_examples=40)
@given(limits)
def test_no_layout_takes_more_than_there_is(limit: Limits) -> None:
    for layout in layouts(limit):
        assert 1 <= layout.nodes <= limit.nodes
        assert layout.cpus_per_task in limit.cpus_per_task
        if layout.tasks_per_node > 1:
            assert layout.tasks_per_node * layout.cpus_per_task <= limit.node_cpus
            assert layout.tasks_per_node * limit.memory_per_task_bytes <= limit.node_memory_bytes


@settings(deadline=None, max_examples=40)
@given(models, limits)
def test_more_nodes_never_predict_less(model: RateModel, limit: Limits) -> None:
    for layout in layouts(limit):
        more = Layout(layout.nodes + 1, layout.tasks_per_node, layout.cpus_per_task)
        assert predict(model, more) >= predict(model, layout)


def test_the_chief_streams_nothing() -> None:
    model = RateModel(1e-3, 0.0)
    assert predict(model, Layout(1, 4, 1)) == pytest.approx(3000)
    assert predict(model, Layout(3, 4, 1)) == pytest.approx(11000)
    assert predict(model, Layout(2, 1, 1)) == pytest.approx(1000)


def test_a_job_of_one_task_is_considered_only_where_nothing_else_fits() -> None:
    one_cpu = Limits(1, 1, 8 << 30, 1 << 30, (1,))
    assert list(layouts(one_cpu)) == [Layout(1, 1, 1)]
    two_cpus = Limits(1, 2, 8 << 30, 1 << 30, (1, 2))
    assert list(layouts(two_cpus)) == [Layout(1, 2, 1)]


def test_memory_limits_the_tasks_of_a_node() -> None:
    limit = Limits(1, 16, 10 << 30, 3 << 30, (1,))
    assert limit.most_tasks(1) == 3
    assert limit.memory_binds(1)
    assert not limit.memory_binds(8)


def test_no_layout_has_more_workers_than_there_are_files() -> None:
    limit = Limits(4, 2, 64 << 30, 1 << 30, (1, 2), most_workers=5)
    found = list(layouts(limit))
    assert max(layout.workers for layout in found) == 5
    assert len(found) == sum(one.workers <= 5 for one in layouts(replace(limit, most_workers=None)))
    assert list(layouts(replace(limit, most_workers=1))) == [
        Layout(1, 2, 1),
        Layout(2, 1, 1),
        Layout(2, 1, 2),
    ]


def test_files_that_keep_workers_idle_are_named_as_the_limit() -> None:
    limit = Limits(4, 2, 64 << 30, 1 << 30, (1,), most_workers=5)
    model, split = RateModel(1e-3, 0.0), Split(5, "shard", "data.py:7")
    (note,) = file_notes(split, model, limit, Target(6000.0, "given"))
    assert note.startswith("The input has 5 files that workers share out whole (shard at data.py:7): ")
    assert "layouts with more are left out. The files are the limit: with 7 files or more, 4 nodes x " in note
    assert "deliver 7,000 samples/s instead of 5,000: write the data to more files, or shard the" in note
    (enough,) = file_notes(split, model, limit, Target(3000.0, "given"))
    assert enough.endswith("layouts with more are left out.")
    assert file_notes(Split(7, "shard", None), model, replace(limit, most_workers=7), None) == ()
    assert file_notes(None, model, replace(limit, most_workers=None), None) == ()


def test_without_a_target_the_highest_rate_counts_and_no_cpus_are_wasted() -> None:
    saturated = RateModel(1e-3, 0.0, sigma=0.99)
    candidates = predictions(saturated, Limits(1, 16, 1 << 40, 1, (1,)))
    chosen = recommend(candidates, None)
    assert chosen.headroom is None
    assert chosen.layout.tasks_per_node < 5


def test_published_rates_of_fc_mnist_are_judged_input_bound() -> None:
    # 25,600,000 samples in 53.424 s with five nodes (argonne-lcf/user-guides), and what a compile report of
    # the same network estimates: 1,270,553 samples/s. Every worker of 5 nodes x 16 tasks gives its part.
    model = RateModel(79 / (25_600_000 / 53.424), 0.0)
    candidates = predictions(model, Limits(5, 16, 1 << 40, 1 << 30, (1,)))
    chosen = recommend(candidates, 1_270_553.0)
    assert chosen.layout.nodes == 5
    assert chosen.samples_per_s == pytest.approx(479_188, rel=0.02)
    assert chosen.utilization == pytest.approx(0.377, rel=0.02)


def test_no_candidates_are_a_mistake_of_the_caller() -> None:
    with pytest.raises(ValueError, match="at least one layout"):
        recommend([], 1.0)
