"""Optimizers against recorded cases of the Cerebras release 2.10."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from cs_toolkit.step import GLOBAL_STEP
from cstorch import optim
from cstorch.errors import OptimizerArgumentError, OptimizerStateError

from .conftest import run_compiled

RECORDED = json.loads((Path(__file__).parents[2] / "golden" / "cstorch" / "optimizers.json").read_text())
CASES = {case["name"]: case for case in RECORDED["cases"]}
NO_RULE_HERE = {"Muon"}
"""Fails in the release itself."""


def plain(value: Any) -> Any:
    """A recorded value as Python has it."""
    if isinstance(value, dict) and value.keys() == {"tuple"}:
        return tuple(value["tuple"])
    if isinstance(value, dict):
        return {name: plain(item) for name, item in value.items()}
    return [plain(item) for item in value] if isinstance(value, list) else value


def arguments(kwargs: dict[str, Any]) -> dict[str, Any]:
    return {name: tuple(value) if isinstance(value, list) else value for name, value in kwargs.items()}


def made(case: dict[str, Any], parameters: list[nn.Parameter]) -> optim.Optimizer:
    groups = case.get("param_groups")
    given: list[Any] = list(parameters)
    if groups:
        given = [{**arguments(group), "params": [parameters[i] for i in group["params"]]} for group in groups]
    return getattr(optim, case["optimizer"])(given, **arguments(case["kwargs"]))


@pytest.mark.parametrize("name", CASES)
def test_every_step_gives_the_recorded_parameters_and_state(name: str) -> None:
    case = CASES[name]
    parameters = [nn.Parameter(torch.tensor(value)) for value in case["params"]]
    optimizer = made(case, parameters)
    for parameter, recorded in zip(parameters, case["state_after_init"], strict=True):
        _check_state(optimizer.state[parameter], {n: spec["values"] for n, spec in recorded.items()})
    for step, (gradients, expected) in enumerate(zip(case["grads"], case["params_after"], strict=True)):
        for group in optimizer.param_groups if "lr_per_step" in case else ():
            group["lr"] = case["lr_per_step"][step]
        for parameter, gradient in zip(parameters, gradients, strict=True):
            parameter.grad = None if gradient is None else torch.tensor(gradient)
        optimizer.step()
        for parameter, value in zip(parameters, expected, strict=True):
            np.testing.assert_allclose(
                parameter.detach(), np.float32(value), rtol=1e-6, atol=1e-6, err_msg=f"step {step}"
            )
        if step == case.get("state_roundtrip_after_step"):
            saved = copy.deepcopy(optimizer.state_dict())
            optimizer = made(case, parameters)
            optimizer.load_state_dict(saved)
    for parameter, recorded, tensors in zip(
        parameters, case["state_final"], case["state_tensors"], strict=True
    ):
        _check_state(optimizer.state[parameter], recorded)
        specs = {n: (list(t.shape), str(t.dtype)) for n, t in optimizer.state[parameter].items()}
        assert specs == {n: (spec["shape"], "torch." + spec["dtype"]) for n, spec in tensors.items()}
    saved = optimizer.state_dict()
    assert saved["param_groups"] == plain(case["state_dict_param_groups"])
    assert {str(i): list(s) for i, s in saved["state"].items() if s} == {
        i: names for i, names in case["state_dict_state_keys"].items() if names
    }


def _check_state(state: dict[str, torch.Tensor], recorded: dict[str, Any]) -> None:
    assert list(state) == list(recorded)
    for name, value in recorded.items():
        np.testing.assert_allclose(state[name], np.float32(value), rtol=2e-6, atol=1e-6, err_msg=name)


@pytest.mark.parametrize("name", sorted(RECORDED["ctor_defaults"].keys() - NO_RULE_HERE))
def test_defaults_are_the_recorded_ones(name: str) -> None:
    recorded = RECORDED["ctor_defaults"][name]
    optimizer = getattr(optim, name)([nn.Parameter(torch.ones(2))], **recorded["given"])
    assert optimizer.defaults == plain(recorded["defaults"])


@pytest.mark.parametrize("case", RECORDED["ctor_errors"], ids=lambda c: f"{c['optimizer']}-{c['kwargs']}")
def test_refused_arguments_are_the_recorded_ones(case: dict[str, Any]) -> None:
    error = {"ValueError": OptimizerArgumentError, "TypeError": TypeError}[case["raises"]]
    with pytest.raises(error) as raised:
        getattr(optim, case["optimizer"])([nn.Parameter(torch.ones(2))], **arguments(case["kwargs"]))
    assert case["optimizer"] in str(raised.value)
    assert isinstance(raised.value, TypeError | ValueError)


RULES: dict[str, tuple[str, dict[str, Any]]] = {
    "SGD": ("SGD", {"lr": 0.1}),
    "SGD-all": (
        "SGD",
        {"lr": 0.1, "momentum": 0.9, "nesterov": True, "weight_decay": 0.1, "maximize": True},
    ),
    "SGD-dampening": ("SGD", {"lr": 0.1, "momentum": 0.9, "dampening": 0.3}),
    "Adam": ("Adam", {"lr": 0.1, "weight_decay": 0.1}),
    "AdamW": ("AdamW", {"lr": 0.1, "weight_decay": 0.1, "amsgrad": True}),
    "AdamW-biased": ("AdamW", {"lr": 0.1, "correct_bias": False, "l2_regularization_rate": 0.1}),
    "Adamax": ("Adamax", {"lr": 0.1, "weight_decay": 0.1}),
    "Adagrad": ("Adagrad", {"lr": 0.1, "lr_decay": 0.1, "initial_accumulator_value": 0.5}),
    "Adadelta": ("Adadelta", {"weight_decay": 0.1}),
    "Adafactor": ("Adafactor", {"lr": 0.1, "weight_decay": 0.1}),
    "Adafactor-relative": ("Adafactor", {"relative_step": True, "warmup_init": True}),
    "ASGD": ("ASGD", {"lr": 0.1, "t0": 1, "weight_decay": 0.1}),
    "Lamb": ("Lamb", {"lr": 0.1, "weight_decay": 0.1}),
    "Lion": ("Lion", {"lr": 0.1, "weight_decay": 0.1}),
    "NAdam": ("NAdam", {"lr": 0.1, "weight_decay": 0.1}),
    "RAdam": ("RAdam", {"lr": 0.1, "betas": (0.9, 0.99), "weight_decay": 0.1}),
    "RMSprop": ("RMSprop", {"momentum": 0.9, "centered": True}),
    "Rprop": ("Rprop", {"lr": 0.1}),
}


class SideBySide(nn.Module):
    """Equal parameters for each rule."""

    def __init__(self) -> None:
        super().__init__()
        self.matrices = nn.ParameterList([nn.Parameter(torch.linspace(-1, 1, 6).view(2, 3)) for _ in RULES])
        self.vectors = nn.ParameterList([nn.Parameter(torch.linspace(0.5, 2, 3)) for _ in RULES])
        self.optimizers: list[optim.Optimizer] = []

    def prepare(self) -> dict[str, torch.Tensor]:
        """Makes the optimizers; returns their state by resource name."""
        for (rule, kwargs), matrix, vector in zip(RULES.values(), self.matrices, self.vectors, strict=True):
            made = getattr(optim, rule)([matrix, vector], **kwargs)
            for group in made.param_groups:
                if group["lr"] is not None and rule in ("SGD", "AdamW", "ASGD"):
                    group["lr"] = vector.new_full((), group["lr"])
            self.optimizers.append(made)
        return {
            name: value
            for i, optimizer in enumerate(self.optimizers)
            for name, value in optimizer.named_state(f"state.optimizer.{i}.").items()
        }


def _train(model: SideBySide, x: torch.Tensor) -> torch.Tensor:
    pairs = zip(model.matrices, model.vectors, strict=True)
    loss = sum(((torch.sin(matrix * x) * vector).square().sum() for matrix, vector in pairs), torch.zeros(()))
    loss.backward()
    for optimizer in model.optimizers:
        optimizer.step()
        optimizer.zero_grad()
        for group in optimizer.param_groups:
            if isinstance(group["lr"], torch.Tensor):
                group["lr"].mul_(0.5)
    return loss.detach()


def test_every_rule_traced_and_compiled_does_what_it_does_eagerly() -> None:
    torch.manual_seed(4)
    batches = [(torch.randn(2, 3),) for _ in range(4)]
    eager = SideBySide()
    state = eager.prepare()
    losses = [float(_train(eager, *batch)) for batch in batches]
    compiled = run_compiled(SideBySide(), _train, batches, SideBySide.prepare)
    np.testing.assert_allclose(compiled.values[:, 0], losses, rtol=1e-6)
    expected = {"state.model." + name: value for name, value in eager.named_parameters()} | state
    assert compiled.state.keys() - {GLOBAL_STEP} == expected.keys()
    for name, value in expected.items():
        np.testing.assert_allclose(
            compiled.state[name], value.detach(), rtol=2e-6, atol=1e-6, err_msg=f"{name} of {list(RULES)}"
        )


def test_learning_rates_of_a_schedule_are_followed() -> None:
    parameter, other = nn.Parameter(torch.ones(2)), nn.Parameter(torch.ones(2))
    number, tensor = optim.Adam([parameter], lr=0.1), optim.Adam([other], lr=torch.tensor(0.1))
    for rate in (0.1, 0.02):
        number.param_groups[0]["lr"] = rate
        tensor.param_groups[0]["lr"].fill_(rate)
        parameter.grad, other.grad = torch.tensor([1.0, -2.0]), torch.tensor([1.0, -2.0])
        number.step()
        tensor.step()
    np.testing.assert_allclose(other.detach(), parameter.detach(), rtol=1e-6)
    assert parameter[0].item() == pytest.approx(1 - 0.12, rel=1e-4)
