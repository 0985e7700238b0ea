"""Schedules out of configurations."""

from __future__ import annotations

import warnings
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch

from cstorch.errors import ScheduleError, ScheduleTypeError
from cstorch.optim.configure import configure_lr_scheduler, configure_scheduler_params
from cstorch.optim.lr_scheduler import (
    ChainedLR,
    ConstantLR,
    CosineAnnealingWarmRestarts,
    CyclicLR,
    LinearLR,
    PiecewiseConstantLR,
    SequentialLR,
    StepLR,
)


@dataclass
class Groups:
    """The part of an optimizer that a schedule needs."""

    param_groups: list[dict[str, Any]] = field(
        default_factory=lambda: [{"params": [torch.ones(2)], "lr": 0.9}]
    )


def rates(schedule: Any, steps: int) -> list[float]:
    found = [schedule.get_last_lr()[0].item()]
    for _ in range(steps - 1):
        schedule.step()
        found.append(schedule.get_last_lr()[0].item())
    return found


@pytest.mark.parametrize("number", [1, 0.25])
def test_a_number_is_a_rate_that_stays(number: float) -> None:
    schedule = configure_lr_scheduler(Groups(), number)
    assert type(schedule) is ConstantLR
    assert rates(schedule, 3) == [number] * 3


LINE = {"initial_learning_rate": 0.0, "end_learning_rate": 1.0, "total_iters": 4}


@pytest.mark.parametrize(
    ("entry", "cls", "expected"),
    [
        ({"scheduler": "LinearLR", **LINE}, LinearLR, [0, 0.25]),
        ({"scheduler": "LINEAR", **LINE}, LinearLR, [0, 0.25]),
        (
            {"scheduler": "linearlr", "learning_rate": 0.0, "end_learning_rate": 1.0, "decay_steps": 2},
            LinearLR,
            [0, 0.5],
        ),
        ({"scheduler": "linear", "base_lr": 0.0, "end_learning_rate": 1.0, "steps": 1}, LinearLR, [0, 1]),
        ({"scheduler": "constant", "learning_rate": 0.5}, ConstantLR, [0.5, 0.5]),
        (
            {"scheduler": "PiecewiseConstant", "values": [0.5, 1], "boundaries": [1]},
            PiecewiseConstantLR,
            [0.5, 1],
        ),
        ({"scheduler": "cyclic", "base_lr": 0.0, "max_lr": 1.0, "step_size_up": 2}, CyclicLR, [0, 0.5]),
        (
            {"scheduler": "CosineAnnealingWarmRestarts", "initial_learning_rate": 1.0, "T_0": 2},
            CosineAnnealingWarmRestarts,
            [1, 0.5],
        ),
    ],
)
def test_a_dictionary_names_a_class_and_its_arguments(
    entry: dict[str, Any], cls: type, expected: list[float]
) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        schedule = configure_lr_scheduler(Groups(), entry)
    assert type(schedule) is cls
    assert rates(schedule, 2) == pytest.approx(expected, abs=1e-6)


def test_unused_settings_are_reported() -> None:
    with pytest.warns(UserWarning, match=r"ConstantLR has no argument 'decay_rate'"):
        configure_lr_scheduler(Groups(), {"scheduler": "Constant", "learning_rate": 0.5, "decay_rate": 3})


STEP = {"scheduler": "Step", "initial_learning_rate": 1.0, "step_size": 1, "gamma": 0.5}


def test_a_list_is_one_after_the_other() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        schedule = configure_lr_scheduler(
            Groups(), [{"scheduler": "Linear", **LINE}, {**STEP, "steps": 2}, {**STEP, "gamma": 0.1}]
        )
    assert type(schedule) is SequentialLR
    expected = [0, 0.25, 0.5, 0.75, 1.0, 0.5, 1.0, 0.1]
    assert rates(schedule, 8) == pytest.approx(expected)


@pytest.mark.parametrize("name", ["ChainedLR", "chained", "ChainedScheduler"])
def test_main_scheduler_multiplies(name: str) -> None:
    schedule = configure_lr_scheduler(Groups(), [{**STEP, "main_scheduler": name}, {**STEP, "gamma": 0.1}])
    assert type(schedule) is ChainedLR
    assert rates(schedule, 3) == pytest.approx([1.0, 0.05, 0.0025])


def test_tags_of_the_entries_are_those_of_the_whole() -> None:
    optimizer = Groups([{"params": [torch.ones(1)], "lr": 0.9, "tags": tag} for tag in ("a", ["b", "c"])])
    schedule = configure_lr_scheduler(optimizer, [{**STEP, "total_iters": 1, "param_group_tags": ["c"]}] * 2)
    schedule.step()
    assert [float(group["lr"]) for group in optimizer.param_groups] == [0.9, 1.0]
    assert isinstance(schedule, SequentialLR)
    assert type(schedule._schedulers[0]) is StepLR


@pytest.mark.parametrize(
    ("learning_rate", "error", "message"),
    [
        ("fast", ScheduleTypeError, r"'fast', expected a number, a dictionary"),
        (True, ScheduleTypeError, r"True, expected a number"),
        ([], ScheduleTypeError, r"\[\], expected a number"),
        ({"learning_rate": 1}, ScheduleTypeError, r"expected a dictionary with 'scheduler'"),
        ([STEP, 0.1], ScheduleTypeError, r"got 0.1 as a schedule"),
        ({"scheduler": "Linaer"}, ScheduleError, r"'Linaer', expected one of .*LinearLR"),
        ({"scheduler": "Sequential"}, ScheduleError, r"a list puts several together"),
        (
            {"scheduler": "Linear", "steps": 3},
            ScheduleError,
            r"LinearLR: initial_learning_rate, end_learning",
        ),
        ({"scheduler": "Linear", **LINE, "steps": 3}, ScheduleError, r"total_iters is given twice"),
        ([STEP, STEP], ScheduleError, r"learning_rate\[0\] \(Step\) has no total_iters"),
        ([{**STEP, "main_scheduler": "Ring"}], ScheduleError, r"main_scheduler is ring, expected ChainedLR"),
    ],
)
def test_errors_are_reported(learning_rate: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        configure_lr_scheduler(Groups(), learning_rate)


def test_a_dictionary_is_checked_without_an_optimizer() -> None:
    assert configure_scheduler_params(STEP) == (
        StepLR,
        {"initial_learning_rate": 1.0, "step_size": 1, "gamma": 0.5},
    )
    with pytest.raises(ScheduleError, match="StepLR: step_size, gamma missing"):
        configure_scheduler_params({"scheduler": "step", "learning_rate": 0.1})
