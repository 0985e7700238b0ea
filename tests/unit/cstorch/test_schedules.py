"""Schedules of learning rates and weight decays against recorded cases of the Cerebras release 2.10."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from cstorch.errors import OptimizerArgumentError, ScheduleError, ScheduleFunctionError
from cstorch.optim import SGD, Adafactor, lr_scheduler, scheduler, weight_decay_scheduler
from cstorch.optim.scheduler import Scheduler
from cstorch.tracing.device import DeviceTensor, to_device
from cstorch.tracing.step import trace

from .conftest import run_traced

GOLDEN = Path(__file__).parents[2] / "golden" / "cstorch"
MODULES = {"lr_schedulers": lr_scheduler, "weight_decay_schedulers": weight_decay_scheduler}
RECORDED = {name: json.loads((GOLDEN / f"{name}.json").read_text()) for name in MODULES}
CASES = {case["name"]: case for recorded in RECORDED.values() for case in recorded["cases"]}
REFUSED = [case for recorded in RECORDED.values() for case in recorded.get("ctor_errors", [])]
MORE = [
    ("CyclicLR", {"base_lr": 0.1, "max_lr": 0.5, "step_size_up": 2, "mode": "triangular2"}),
    ("OneCycleLR", {"initial_learning_rate": 0.1, "max_lr": 0.4, "total_steps": 12}),
    ("LinearLR", {"initial_learning_rate": 0.1, "end_learning_rate": 0.2, "total_iters": 9, "last_epoch": 4}),
    (
        "ChainedLR",
        {
            "schedulers": [
                {
                    "class": "SequentialLR",
                    "kwargs": {
                        "schedulers": [
                            {"class": "ConstantLR", "kwargs": {"learning_rate": 0.4}},
                            {
                                "class": "LinearLR",
                                "kwargs": {
                                    "initial_learning_rate": 0.4,
                                    "end_learning_rate": 0.2,
                                    "total_iters": 4,
                                },
                            },
                        ],
                        "milestones": [2],
                    },
                },
                {
                    "class": "StepLR",
                    "kwargs": {"initial_learning_rate": 1.0, "step_size": 3, "gamma": 0.5},
                },
            ]
        },
    ),
]
"""Kinds that no recorded case has: class and arguments."""


@dataclass
class Groups:
    """The part of an optimizer that a schedule needs."""

    param_groups: list[dict[str, Any]] = field(
        default_factory=lambda: [{"params": [torch.ones(2)], "lr": 0.9}]
    )


def groups_of(case: dict[str, Any], place: Callable[[torch.Tensor], torch.Tensor] = lambda x: x) -> Groups:
    parameters = [place(torch.ones(2)), place(torch.ones(3))]
    listed = case.get("param_groups", [{"params": [0, 1]}])
    return Groups(
        [
            {"lr": 0.9, "weight_decay": 0.8, **group, "params": [parameters[i] for i in group["params"]]}
            for group in listed
        ]
    )


def made(cls_name: str, kwargs: dict[str, Any], optimizer: Groups) -> Any:
    """A schedule, with those inside it."""

    def inner(value: Any) -> Any:
        if isinstance(value, dict):
            return made(value["class"], value["kwargs"], optimizer)
        return list(map(inner, value)) if isinstance(value, list) else value

    cls = next(getattr(module, cls_name) for module in MODULES.values() if hasattr(module, cls_name))
    given = {name: inner(value) for name, value in kwargs.items()}
    return cls(**given) if cls_name.startswith("Chained") else cls(optimizer, **given)


def values(schedule: Scheduler) -> list[float]:
    return [float(group[schedule.param_group_key]) for group in schedule.optimizer.param_groups]


def described(value: Any) -> Any:
    """A state as the recorded cases write it."""
    if isinstance(value, torch.Tensor):
        kind = str(value.dtype).removeprefix("torch.")
        return {"tensor": {"dtype": kind, "shape": list(value.shape), "values": pytest.approx(value.item())}}
    if isinstance(value, set):
        return {"set": sorted(value)}
    if isinstance(value, dict):
        return {name: described(item) for name, item in value.items()}
    return list(map(described, value)) if isinstance(value, list) else value


@pytest.mark.parametrize("name", CASES)
def test_values_and_states_are_the_recorded_ones(name: str) -> None:
    case = CASES[name]
    schedule = made(case["scheduler"], case["kwargs"], groups_of(case))
    for step, expected in enumerate(case["values"]):
        if step:
            schedule.step()
        np.testing.assert_allclose(values(schedule), expected, rtol=1e-6, atol=1e-7, err_msg=f"step {step}")
        if case.get("state_roundtrip_after_step") == step:
            saved = schedule.state_dict()
            schedule = made(case["scheduler"], case["kwargs"], groups_of(case))
            schedule.load_state_dict(saved)
            np.testing.assert_allclose(values(schedule), case["value_right_after_load"], rtol=1e-6)
    state = schedule.state_dict()
    assert sorted(state) == case["state_dict_keys"]
    assert described(state) == case["state_dict_final"]


def test_every_recorded_class_exists() -> None:
    for name, module in MODULES.items():
        assert set(RECORDED[name]["classes_in_module"]) <= set(vars(module))


@pytest.mark.parametrize("case", REFUSED, ids=lambda case: case["scheduler"])
def test_arguments_that_the_release_refuses_are_refused_with_the_same_type(case: dict[str, Any]) -> None:
    with pytest.raises({"ValueError": ValueError, "TypeError": TypeError}[case["raises"]]):
        made(case["scheduler"], case["kwargs"], groups_of(case))


def everywhere(place: Callable[[torch.Tensor], torch.Tensor] = lambda x: x) -> list[Any]:
    """A schedule of each case, with parameters that lie somewhere."""
    asked = [(case["scheduler"], case["kwargs"], case) for case in CASES.values()]
    asked += [(cls_name, kwargs, {}) for cls_name, kwargs in MORE]
    return [made(cls_name, kwargs, groups_of(case, place)) for cls_name, kwargs, case in asked]


def scheduled(schedules: list[Any]) -> list[torch.Tensor]:
    """The entries that schedules write, of all groups."""
    return [
        group[s.param_group_key] for s in schedules for group in s.optimizer.param_groups if s._is_for(group)
    ]


def test_a_step_that_is_traced_once_follows_every_schedule() -> None:
    here, there = everywhere(), everywhere(to_device)
    state = {
        f"state.optimizer.lr_scheduler.{index}.{name}": tensor
        for index, schedule in enumerate(there)
        for name, tensor in schedule.named_state()
    }
    state |= {f"state.optimizer.scheduled.{i}": tensor for i, tensor in enumerate(scheduled(there))}
    assert all(isinstance(tensor, DeviceTensor) for tensor in state.values())

    def step() -> list[torch.Tensor]:
        for schedule in there:
            schedule.step()
        return scheduled(there)

    batches = [(torch.ones(1),)] * 12
    found = run_traced(trace(step, [DeviceTensor(torch.ones(1))], state), batches)
    for taken, got in enumerate(found.values):
        for schedule in here:
            schedule.step()
        expected = [value.item() for value in scheduled(here)]
        np.testing.assert_allclose(got, expected, rtol=1e-6, atol=1e-6, err_msg=f"step {taken + 1}")
    for index, schedule in enumerate(here):
        for name, tensor in schedule.named_state():
            assert found.state[f"state.optimizer.lr_scheduler.{index}.{name}"] == tensor.item()


def test_a_step_follows_the_schedule_of_groups_without_parameters(monkeypatch: pytest.MonkeyPatch) -> None:
    """A program may freeze the whole first group; values are on the device too."""
    monkeypatch.setattr("cstorch.program.Program.uses_cs", True)
    groups = [{"params": [], "lr": 0.9}, {"params": [to_device(torch.ones(2))], "lr": 0.9}]
    schedule = lr_scheduler.LinearLR(Groups(groups), 1.0, 0.0, total_iters=4)
    state = {f"state.optimizer.lr_scheduler.0.{name}": tensor for name, tensor in schedule.named_state()}
    state |= {f"state.optimizer.scheduled.{i}": group["lr"] for i, group in enumerate(groups)}
    assert all(isinstance(tensor, DeviceTensor) for tensor in state.values())

    def step() -> list[torch.Tensor]:
        schedule.step()
        return [group["lr"] for group in groups]

    found = run_traced(trace(step, [DeviceTensor(torch.ones(1))], state), [(torch.ones(1),)] * 3)
    np.testing.assert_allclose(found.values, [[0.75] * 2, [0.5] * 2, [0.25] * 2], rtol=1e-6)


def test_formulas_that_no_case_has() -> None:
    halved, one, late, nested = (made(cls_name, kwargs, Groups()) for cls_name, kwargs in MORE)
    tops, whole, product = [], [], []
    for _ in range(12):
        product.append(values(nested)[0])
        nested.step()
        tops.append(values(halved)[0])
        whole.append(values(one)[0])
        halved.step()
        one.step()
    np.testing.assert_allclose(tops[2::4], [0.5, 0.3, 0.2], rtol=1e-6)
    np.testing.assert_allclose(tops[::4], [0.1] * 3, rtol=1e-6)
    turn = 0.3 * 12 - 1
    risen = [0.4 - 0.3 * (1 + math.cos(math.pi * e / turn)) / 2 for e in range(3)]
    fallen = [
        1e-5 + (0.4 - 1e-5) * (1 + math.cos(math.pi * (e - turn) / (11 - turn))) / 2 for e in range(3, 12)
    ]
    np.testing.assert_allclose(whole, risen + fallen, rtol=1e-5, atol=1e-7)
    np.testing.assert_allclose(product[:7], [0.4, 0.4, 0.4, 0.2, 0.2, 0.2, 0.1], rtol=1e-6)
    assert late.last_epoch.item() == 5
    assert values(late)[0] == pytest.approx(0.1 + 0.1 * 5 / 9)


def test_a_programs_own_schedule_gives_a_closed_form() -> None:
    class Sawtooth(lr_scheduler.LRScheduler):
        def __init__(self, optimizer: Groups) -> None:
            super().__init__(optimizer)

        def _get_closed_form_lr(self) -> torch.Tensor:
            return torch.where(self.last_epoch % 3 == 2, 0.5, 0.25)

    optimizer = Groups()
    own = lr_scheduler.SequentialLR(
        optimizer, [Sawtooth(optimizer), lr_scheduler.ConstantLR(optimizer, 1.0)], [4]
    )
    seen = []
    for _ in range(6):
        seen.append(own.get_last_lr()[0].item())
        own.step()
    assert seen == [0.25, 0.25, 0.5, 0.25, 1.0, 1.0]
    with pytest.raises(ScheduleError, match=r"Sawtooth has no initial value, .* put it first"):
        lr_scheduler.ChainedLR([lr_scheduler.ConstantLR(optimizer, 1.0), Sawtooth(optimizer)])
    with pytest.raises(NotImplementedError, match=r"LRScheduler has no schedule"):
        lr_scheduler.LRScheduler(optimizer, 5)


def test_a_constant_is_no_change_in_a_chain() -> None:
    optimizer = Groups()
    halving = lr_scheduler.MultiplicativeLR(optimizer, 0.5, 0.5)
    chain = lr_scheduler.ChainedScheduler([halving, lr_scheduler.ConstantLR(optimizer, 0.2)])
    chain.step()
    assert values(chain) == [0.25]
    warm_up = lr_scheduler.LinearLR(optimizer, 0.0, 1.0, 5)
    with pytest.raises(ScheduleError, match=r"LinearLR begins at 0, .* put it first"):
        lr_scheduler.ChainedLR([halving, warm_up])


def test_functions_of_the_epoch() -> None:
    class Square(lr_scheduler.LambdaLR):
        def set_lr_lambda(self) -> list[Callable[[torch.Tensor], Any]]:
            return [lambda epoch: torch.exp(-epoch), lambda epoch: 0.5]

    class Python(lr_scheduler.LambdaLR):
        def set_lr_lambda(self) -> list[Callable[[torch.Tensor], Any]]:
            return [lambda epoch: math.exp(-epoch)]

    square = Square(Groups(), 3.0)
    square.step()
    assert values(square)[0] == pytest.approx(9 * 0.5 * math.exp(-1))
    optimizer = Groups()
    optimizer.param_groups[0]["params"] = [to_device(torch.ones(2))]
    python = Python(optimizer, 3.0)
    state = {"state.epoch": python.last_epoch, "state.lr": optimizer.param_groups[0]["lr"]}
    with pytest.raises(ScheduleFunctionError, match=r"Python: .*lambda.* torch\.exp.*test_schedules\.py:\d+"):
        trace(python.step, [], state)


def test_the_state_of_another_schedule_is_refused() -> None:
    saved = made(
        "StepLR", {"initial_learning_rate": 0.1, "step_size": 2, "gamma": 0.5}, Groups()
    ).state_dict()
    with pytest.raises(
        ScheduleError, match=r"ConstantLR: the state has .*step_size.* expected .*learning_rate"
    ):
        lr_scheduler.ConstantLR(Groups(), 0.1).load_state_dict(saved)


def test_tags_may_come_back_as_a_list() -> None:
    case = CASES["StepLR_tags_str"]
    schedule = made(case["scheduler"], case["kwargs"], groups_of(case))
    schedule.load_state_dict({**schedule.state_dict(), "param_group_tags": ["b"]})
    for _ in range(6):
        schedule.step()
    assert values(schedule) == [0.25, 0.33]


def test_loading_keeps_the_tensors_that_a_step_was_traced_with() -> None:
    case = CASES["SequentialLR_resume"]
    schedule, other = (made(case["scheduler"], case["kwargs"], groups_of(case)) for _ in range(2))
    for _ in range(12):
        other.step()
    before = dict(schedule.named_state())
    rate = schedule.optimizer.param_groups[0]["lr"]
    schedule.load_state_dict(other.state_dict())
    assert all(before[name] is tensor for name, tensor in schedule.named_state())
    assert schedule.optimizer.param_groups[0]["lr"] is rate
    assert rate.item() == values(other)[0]
    other.step()
    assert schedule.get_last_lr() == [rate]
    assert [tensor.item() for tensor in before.values()] == [12, 12, 2]


def test_a_loaded_schedule_writes_the_value_that_was_saved() -> None:
    """The system may have rounded a cosine otherwise than this CPU, and a resumed run keeps its bits."""
    parameters = [torch.nn.Parameter(torch.zeros(2))]
    optimizer = SGD(parameters, lr=1.0)
    schedule = lr_scheduler.CosineDecayLR(optimizer, 0.3, 0.01, 50)
    schedule.step()
    rate = torch.nextafter(optimizer.param_groups[0]["lr"], torch.tensor(1.0))
    schedule.load_state_dict({**schedule.state_dict(), "_last_value": [rate]})
    assert optimizer.param_groups[0]["lr"] == rate


class MomentumStep(scheduler.StepScheduler):
    """Return a schedule of an entry without a separate module."""

    param_group_key = "momentum"


def test_any_entry_of_a_group_can_be_scheduled() -> None:
    optimizer = SGD([torch.nn.Parameter(torch.ones(1))], lr=0.1, momentum=0.8)
    schedule = MomentumStep(optimizer, 0.8, 2, 0.5)
    for _ in range(2):
        schedule.step()
    assert values(schedule) == pytest.approx([0.4])
    schedule.increment_last_epoch()
    assert [float(value) for value in schedule.get() if value is not None] == pytest.approx([0.4])
    schedule.update_groups([torch.tensor(0.25)])
    assert float(optimizer.param_groups[0]["momentum"]) == 0.25
    schedule.update_last_value()
    assert float(schedule.get_last_value()[0]) == pytest.approx(0.4)
    with pytest.raises(TypeError, match="param_group_key"):
        scheduler.StepScheduler(optimizer, 0.8, 2, 0.5)


def test_learning_rates_have_the_names_of_the_formulas_too() -> None:
    linear = lr_scheduler.LinearLR(Groups(), 0.1, 0.2, 9)
    assert (linear.initial_val, linear.end_val) == (0.1, 0.2)
    assert isinstance(linear, scheduler.LinearScheduler)
    assert linear.param_group_key == "lr"
    assert not hasattr(linear, "max_val")
    assert lr_scheduler.CyclicLR(Groups(), 0.1, 0.4).max_val == 0.4
    assert lr_scheduler.ConstantLR(Groups(), 0.3).val == 0.3
    rate = lr_scheduler.ScalePerParamLR(optimizer := Groups(), lr_scheduler.ConstantLR(optimizer, 0.3))
    assert rate.adjustment_scalars == [1.0]
    assert float(rate.get_lr()[0]) == pytest.approx(0.3)


@pytest.mark.parametrize("kind", ["LR", "WD"])
def test_a_sequence_in_a_sequence_changes_between_first_values(
    kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    module = lr_scheduler if kind == "LR" else weight_decay_scheduler
    constant, linear, step, sequence = (
        getattr(module, name + kind) for name in ("Constant", "Linear", "Step", "Sequential")
    )
    optimizer = SGD([torch.nn.Parameter(torch.ones(1))], lr=0.1)
    inner = sequence(optimizer, [linear(optimizer, 0.1, 0.2, 4), step(optimizer, 0.5, 1, 0.5)], [2])
    assert not caplog.records
    schedule = sequence(optimizer, [constant(optimizer, 0.9), inner], [2])
    assert "give one list of schedules" in caplog.text
    found = []
    for _ in range(7):
        found += values(schedule)
        schedule.step()
    assert found == pytest.approx([0.9, 0.9, 0.1, 0.1, 0.5, 0.5, 0.5])


def test_tags_that_no_group_has_are_refused() -> None:
    groups = [{"params": [torch.ones(1)], "lr": 0.9, "tags": tags} for tags in (None, "head", ["a", "b"])]
    with pytest.raises(ScheduleError, match=r"\['tail'\], expected some of \['a', 'b', 'head'\]"):
        lr_scheduler.ConstantLR(Groups(groups), 0.5, param_group_tags="tail")
    lr_scheduler.ConstantLR(Groups(groups), 0.5, param_group_tags=["a", "tail"])
    assert [float(group["lr"]) for group in groups] == pytest.approx([0.9, 0.9, 0.5])


def test_values_that_are_not_finite_are_refused() -> None:
    optimizer = SGD([torch.nn.Parameter(torch.ones(1))], lr=0.1)
    with pytest.raises(ScheduleError, match="ExponentialLR got decay_rate = inf, expected a finite number"):
        lr_scheduler.ExponentialLR(optimizer, 0.1, 10, math.inf)
    with pytest.raises(ScheduleError, match="ConstantLR got learning_rate = nan"):
        lr_scheduler.PiecewiseConstantLR(optimizer, [0.1, math.nan], [5])


def test_a_schedule_gives_adafactor_its_first_rate() -> None:
    weight = torch.nn.Parameter(torch.ones(2, 3))
    weight.grad = torch.full((2, 3), 0.5)
    optimizer = Adafactor([weight])
    with pytest.raises(OptimizerArgumentError, match="lr = None, expected a number or a schedule"):
        optimizer.step()
    schedule = lr_scheduler.ConstantLR(optimizer, 0.25)
    assert schedule.get_last_lr()[0] == 0.25
    optimizer.step()
    assert not torch.equal(weight, torch.ones(2, 3))
