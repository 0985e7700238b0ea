"""Rates of layouts that were not measured, of torch DataLoaders whose cost is known."""

from __future__ import annotations

import os
import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from csrun.tasks.environment import program_environment, this_toolkit
from input_analyzer.analysis import Target
from input_analyzer.analyze import Request, examine, model_point
from input_analyzer.conclusions import find_bottleneck
from input_analyzer.measure.copies import Launch
from input_analyzer.measure.examine import stage_costs
from input_analyzer.measure.rates import Effort, Plan, Rates
from input_analyzer.rate_model import Point, fit
from input_rules.pipeline import StageTime
from input_rules.throughput import sample_time
from input_rules.torch.loader import read_pipeline

FILE = Path(__file__).with_name("torch_pipelines.py")


def _pipelines() -> ModuleType:
    spec = spec_from_file_location("torch_pipelines", FILE)
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[spec.name] = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


PIPELINES = _pipelines()
TOLERANCE = 0.2
ONE, SIDE_BY_SIDE, TWO_CPUS = (1, 1), (2, 1), (1, 2)
"""Layouts (copies, CPUs each) of two CPUs."""
ROUNDS = 2
PLANS = (Plan(1, (1, 2)), Plan(2, (1,)))


@pytest.mark.parametrize("case", PIPELINES.CASES, ids=lambda case: case.name)
def test_the_bottleneck_follows_from_times_and_workers(case: Any) -> None:
    pipeline = read_pipeline(case.make())
    times = [StageTime(stage.name, *case.costs.get(stage.name, (0, 0))) for stage in pipeline.stages]
    costs = stage_costs(pipeline, tuple(times))
    for cpus, stage in case.bottleneck.items():
        found = find_bottleneck(costs, cpus)
        assert found is not None
        assert found.stage == stage


def measured(launch: Launch, cpus: tuple[int, ...]) -> dict[tuple[int, int], Point]:
    """Measure the fastest rate of every layout over rounds: other programs only take CPUs away."""
    points: dict[tuple[int, int], Point] = {}
    for plan in ROUNDS * PLANS:
        for one in Rates(Effort(1.0, 3.0), None, cpus).measure(launch, plan, lambda doing, part: None):
            layout, point = (one.tasks, one.cpus_per_task), model_point(one)
            if layout not in points or points[layout].samples_per_s < point.samples_per_s:
                points[layout] = point
    return points


@pytest.mark.soak  # true on a machine that does little else
@pytest.mark.timeout(240)
@pytest.mark.parametrize("make", PIPELINES.PREDICTED, ids=lambda make: make.__name__)
def test_layouts_that_were_not_measured_are_predicted_within_20_percent(make: Any) -> None:
    cpus = tuple(sorted(os.sched_getaffinity(0)))[:2]
    if len(cpus) < 2:
        pytest.skip("needs two CPUs")
    environment = dict(os.environ)
    environment = program_environment(environment, this_toolkit()).apply(environment)
    words = (sys.executable, "-m", "input_analyzer.function_program", f"{FILE}:{make.__name__}")
    launch = Launch(words, environment, 60.0, None, "here")
    request = Request(("python",), launch, cpus, 1, target=Target(1.0, "given"), stage_seconds=3.0)
    stages = sample_time(examine(request, lambda doing, part: None).stages)
    points = measured(launch, cpus)
    predicted = {
        SIDE_BY_SIDE: fit([points[ONE], points[TWO_CPUS]], stages).rate(2, 1),
        TWO_CPUS: fit([points[ONE], points[SIDE_BY_SIDE]], stages).rate(1, 2),
        ONE: fit([points[SIDE_BY_SIDE], points[TWO_CPUS]], stages).rate(1, 1),
    }
    errors = {layout: rate / points[layout].samples_per_s - 1 for layout, rate in predicted.items()}
    for (tasks, each), error in errors.items():
        rate, true = predicted[tasks, each], points[tasks, each].samples_per_s
        print(
            f"{make.__name__}: {tasks} x {each} {true:,.0f}/s, predicted {rate:,.0f}/s, {100 * error:+.1f} %"
        )
    assert all(abs(error) <= TOLERANCE for error in errors.values()), errors
