"""Which stage bounds a pipeline, and what is said of it."""

from __future__ import annotations

from dataclasses import replace

from input_analyzer.bottleneck import bottleneck_of
from input_rules.throughput import Lane, StageCost, pace, time_us, unaccounted_us


def cost(name: str, us: float, lane: Lane, *, waits: bool = False, once: bool = False) -> StageCost:
    cpu, wait = (0.0, us) if waits else (us, 0.0)
    return StageCost(name, "map", 0, us, cpu, wait, once, None, lane)


def test_a_dearer_stage_on_two_cpus_is_not_the_bottleneck() -> None:
    stages = [cost("one", 3000, Lane(0)), cost("many", 4000, Lane(1, 1, 1.0))]
    assert [bottleneck_of(stages, cpus).stage for cpus in (1, 2, 8)] == ["many", "one", "one"]
    assert bottleneck_of(stages, 2).reason == (
        "3,000 us of computing per sample, 43 % of the time of all stages; without it a task with 2 CPUs "
        "could be 1.75 times as fast"
    )
    assert "4,000 us of computing per sample" in bottleneck_of(stages, 1).reason
    assert time_us(stages, 1) == 7000
    assert time_us(stages, 2) == 3500
    assert time_us(stages, 4) == 3000
    assert pace(stages).serial_us == 3000
    assert pace(stages).parallel_us == 7000


def test_the_bottleneck_tells_computing_from_waiting_and_no_figure_without_meaning() -> None:
    rest = cost("batch", 1.4, Lane(0))
    both = replace(cost("map", 4020, Lane(0)), cpu_us_per_sample=414.0, wait_us_per_sample=3606.0)
    assert bottleneck_of([both, rest], 1).reason == (
        "4,020 us per sample, of that 3,606 us waiting, 100 % of the time of all stages; almost nothing else "
        "takes time: without it a task with 1 CPU could be more than 20 times as fast"
    )
    assert bottleneck_of([cost("map", 123456, Lane(0), waits=True), rest], 1).reason.startswith(
        "123,456 us of waiting per sample, "
    )


def test_the_bottleneck_explains_no_more_than_it_takes() -> None:
    stages = [cost("one", 3, Lane(0)), cost("many", 4, Lane(1, 1, 1.0))]
    assert unaccounted_us(stages, 57.0) == 50.0
    assert unaccounted_us(stages, 6.0) == 0.0
    assert unaccounted_us(stages, None) is unaccounted_us([StageCost("map", "map", 0)], 9.0) is None
    assert bottleneck_of(stages, 1, 3.0).reason == (
        "4 us of computing per sample, 57 % of the time of all stages; without that, and with the 3 us of "
        "CPU time in no stage (calls, handing elements over) as they are, a task with 1 CPU could be 1.67 "
        "times as fast; a change that spares some of these, too, gives more"
    )
    lanes_alike = [cost("one", 3, Lane(0)), cost("other", 3, Lane(1)), cost("many", 4, Lane(2, 1, 1.0))]
    assert "times as fast" not in bottleneck_of(lanes_alike, 4, 2.0).reason, "none is as fast as without it"
    most = bottleneck_of(stages, 1, 50.0)
    assert most.stage == "many"
    assert "times as fast" not in most.reason
    assert "; more time goes into no stage: 50 us of CPU time per sample into calls" in most.reason


def test_what_waits_in_several_threads_is_divided_by_them() -> None:
    stages = [cost("far", 8000, Lane(0, 8), waits=True), cost("near", 1500, Lane(1), waits=True)]
    assert bottleneck_of(stages, 1).stage == "near"
    pooled = [cost("far", 8000, Lane(0, 8, pooled=True), waits=True), stages[1]]
    assert [bottleneck_of(pooled, cpus).stage for cpus in (1, 4, 8)] == ["far", "far", "near"]
    assert "in 4 threads" in bottleneck_of(pooled, 4).reason


def test_pythons_lock_keeps_threads_from_computing_side_by_side() -> None:
    stages = [cost("a", 2000, Lane(0, 1, 1.0, locked=True)), cost("b", 1000, Lane(1, 1, 1.0, locked=True))]
    assert time_us(stages, 8) == 3000
    assert bottleneck_of(stages, 8).stage == "a"


def test_the_largest_stage_of_the_slowest_thread_is_the_bottleneck() -> None:
    slow = [cost(name, us, Lane(0)) for name, us in (("a", 2000), ("b", 2500), ("c", 1800))]
    assert bottleneck_of([*slow, cost("d", 4000, Lane(1))], 4).stage == "b"
    assert bottleneck_of([*slow, cost("d", 9000, Lane(1), once=True)], 4).stage == "b"
    assert bottleneck_of([cost("d", 9000, Lane(1), once=True)], 4) is None
