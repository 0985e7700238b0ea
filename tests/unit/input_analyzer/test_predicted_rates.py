"""Rates of layouts that were not measured, and bottlenecks, of pipelines whose cost is known."""

from __future__ import annotations

import os
import sys
from dataclasses import replace
from functools import cache
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from statistics import median
from types import ModuleType
from typing import Any

import pytest

from csrun.tasks.environment import program_environment, this_toolkit
from input_analyzer.analysis import Measurement, Target
from input_analyzer.analyze import ExaminedInput, Request, model_point
from input_analyzer.analyze import examine as examine_program
from input_analyzer.conclusions import find_bottleneck
from input_analyzer.measure.copies import Launch
from input_analyzer.measure.examine import stage_costs
from input_analyzer.measure.rates import Effort, Plan, Rates
from input_analyzer.rate_model import Point, fit
from input_analyzer.tf.eager_graph import rebuild_in_graph
from input_rules.pipeline import StageTime
from input_rules.tf.pipeline import trace
from input_rules.throughput import sample_time

FILE = Path(__file__).with_name("pipelines.py")


def _pipelines() -> ModuleType:
    spec = spec_from_file_location("input_analyzer_pipelines", FILE)
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[spec.name] = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


CASES = _pipelines().CASES
TOLERANCE = 0.2
MOST_TOLERANCE_OF_TIMES = 0.15
CALL_US = 150.0
ROUNDS = 2
ONE, SIDE_BY_SIDE, TWO_CPUS = (1, 1), (2, 1), (1, 2)
"""Layouts (copies, CPUs each) of two CPUs."""
PLANS = (Plan(1, (1, 2)), Plan(2, (1,)))
KNOWN = [case for case in CASES if case.costs]


def by_name(case: Any) -> str:
    """Return the name of a test."""
    return str(case.name)


@pytest.mark.parametrize("case", KNOWN, ids=by_name)
@pytest.mark.parametrize("cpus", [1, 2])
def test_the_bottleneck_follows_from_times_and_threads(case: Any, cpus: int) -> None:
    pipeline = trace(case.make, in_graph=rebuild_in_graph).pipeline
    times = []
    for stage in pipeline.stages:
        python, wait, steps = case.costs.get(stage.name, (0, 0, 0))
        cached = any(later.op == "cache" for later in pipeline.after(stage))
        times.append(StageTime(stage.name, python + 1000.0 * steps, wait, cached))
    found = find_bottleneck(stage_costs(pipeline, tuple(times)), cpus)
    assert found is not None
    assert found.stage == case.bottleneck[cpus]


@cache
def start(name: str, folder: Path) -> Launch:
    """Start a pipeline as the analyzer does."""
    environment = {**os.environ, "PIPELINES_DATA": str(folder)}
    environment = program_environment(environment, this_toolkit()).apply(environment)
    words = (sys.executable, "-m", "input_analyzer.function_program", f"{FILE}:{name}")
    return Launch(words, environment, 60.0, None, "here")


@cache
def examine(name: str, folder: Path) -> ExaminedInput:
    """The first part of an analysis; once for all tests of a pipeline."""
    cpus = tuple(sorted(os.sched_getaffinity(0)))[:2]
    launch = start(name, folder)
    request = Request(("python",), launch, cpus, 1, target=Target(1.0, "given"), stage_seconds=5.0)
    return examine_program(request, lambda doing, part: None)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder for the files that pipelines read."""
    return tmp_path_factory.mktemp("data")


def run(launch: Launch, examined: ExaminedInput, cpus: tuple[int, ...]) -> dict[tuple[int, int], Point]:
    """Measure the median rate of every layout over interleaved rounds."""
    found: dict[tuple[int, int], list[Measurement]] = {}
    for _ in range(ROUNDS):
        for plan in PLANS:
            rates = Rates(Effort(1.0, 3.0), examined.epoch_of_copy(plan.most), cpus)
            for one in rates.measure(launch, plan, lambda doing, part: None):
                found.setdefault((one.tasks, one.cpus_per_task), []).append(one)
    points = {}
    for layout, several in found.items():
        each = [model_point(one) for one in several]
        rate, cpu_s = median(p.samples_per_s for p in each), median(p.cpu_s or 0.0 for p in each)
        points[layout] = replace(each[0], samples_per_s=rate, cpu_s=cpu_s)
    return points


# One copy with one CPU is what every analysis begins with, so that is never predicted.
@pytest.mark.soak  # true on a machine that does little else
@pytest.mark.timeout(600)
@pytest.mark.parametrize("case", CASES, ids=by_name)
def test_layouts_that_were_not_measured_are_predicted_within_20_percent(case: Any, folder: Path) -> None:
    cpus = tuple(sorted(os.sched_getaffinity(0)))[:2]
    if len(cpus) < 2:
        pytest.skip("needs two CPUs")
    launch, examined = start(case.name, folder), examine(case.name, folder)
    points = run(launch, examined, cpus)
    stages = sample_time(examined.stages)

    predicted = {
        SIDE_BY_SIDE: fit([points[ONE], points[TWO_CPUS]], stages).rate(2, 1),
        TWO_CPUS: fit([points[ONE], points[SIDE_BY_SIDE]], stages).rate(1, 2),
    }
    errors = {layout: rate / points[layout].samples_per_s - 1 for layout, rate in predicted.items()}
    for (tasks, each), error in errors.items():
        rate = predicted[tasks, each]
        print(f"{case.name}: {tasks} x {each} predicted {rate:,.0f} samples/s, {100 * error:+.1f} %")
    assert all(abs(error) <= TOLERANCE for error in errors.values()), errors


@pytest.mark.soak
@pytest.mark.timeout(240)
@pytest.mark.parametrize("case", KNOWN, ids=by_name)
def test_stages_and_bottlenecks_are_those_that_are_known(case: Any, folder: Path) -> None:
    examined = examine(case.name, folder)
    costs = {stage.name: stage for stage in examined.stages}
    for name, (python, wait, steps) in case.costs.items():
        if steps:
            continue
        true, found = python + wait, costs[name].self_time_us_per_sample
        assert found is not None
        low, high = true * (1 - MOST_TOLERANCE_OF_TIMES), true * (1 + MOST_TOLERANCE_OF_TIMES) + CALL_US
        assert low <= found <= high, (name, found, true)
    for cpus, name in case.bottleneck.items():
        found_bottleneck = find_bottleneck(examined.stages, cpus)
        assert found_bottleneck is not None
        assert found_bottleneck.stage == name, cpus
