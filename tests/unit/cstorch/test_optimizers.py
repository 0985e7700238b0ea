"""Optimizers against recorded cases of the Cerebras release 2.10."""

from __future__ import annotations

import copy
import json
import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from cs_toolkit.step import GLOBAL_STEP
from cstorch import optim
from cstorch.errors import OptimizerArgumentError, OptimizerStateError, StepError
from cstorch.tracing.state import move_to_device

from .conftest import run_compiled

RECORDED = json.loads((Path(__file__).parents[2] / "golden" / "cstorch" / "optimizers.json").read_text())
CASES = {case["name"]: case for case in RECORDED["cases"]}


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


@pytest.mark.parametrize("name", sorted(RECORDED["ctor_defaults"].keys()))
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


@pytest.mark.parametrize("value", [float("inf"), float("nan"), "1e-4"])
def test_numbers_that_no_step_can_use_are_refused(value: Any) -> None:
    with pytest.raises(OptimizerArgumentError, match=r"SGD got lr = .*, expected a (finite )?number"):
        optim.SGD([nn.Parameter(torch.ones(2))], lr=value)


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
    "Muon": ("Muon", {"weight_decay": 0.1}),
    "Muon-plain": ("Muon", {"nesterov": False, "ns_steps": 2}),
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
            rest = [] if rule == "Muon" else [vector]
            made = getattr(optim, rule)([matrix, *rest], **kwargs)
            for group in made.param_groups:
                if group["lr"] is not None and rule in ("SGD", "AdamW", "ASGD"):
                    group["lr"] = vector.new_full((), group["lr"])
            self.optimizers.append(made)
        return {
            f"state.optimizer.{i}.{name}": value
            for i, optimizer in enumerate(self.optimizers)
            for name, value in optimizer.named_state()
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


class Halving(optim.Optimizer):
    """A rule of a user: the first step goes by the gradient, each later one by half as much."""

    def __init__(self, params: Any, lr: float) -> None:
        super().__init__(params, {"lr": lr}, enable_global_step=True)

    def preinitialize(self) -> None:
        for group in self.param_groups:
            for parameter in group["params"]:
                self.state[parameter]["last"] = torch.zeros_like(parameter)

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            for parameter in group["params"]:
                count = self.increment_global_step(parameter)
                last = self.state[parameter]["last"]
                last.copy_(torch.where(count == 1, group["lr"] * parameter.grad, last / 2))
                parameter.sub_(last)

    def state_names_to_sparsify(self) -> list[str]:
        return ["last"]


def test_a_rule_of_a_user_has_state_and_a_count_of_steps() -> None:
    parameter = nn.Parameter(torch.ones(2))
    optimizer = Halving([parameter], lr=0.5)
    for _ in range(3):
        parameter.grad = torch.tensor([1.0, 2.0])
        optimizer.step()
    np.testing.assert_allclose(parameter.detach(), 1 - np.array([1, 2]) * 0.5 * 1.75)
    assert list(optimizer.state_dict()["state"][0]) == ["last", "step"]
    with pytest.raises(TypeError, match="abstract"):
        optim.Optimizer([parameter], {})
    with pytest.raises(OptimizerStateError, match="enable_global_step=True"):
        optim.Lion([parameter]).increment_global_step(parameter)


class Heavy(optim.Optimizer):
    """Momentum that puts another tensor in the place of its state in every step."""

    def preinitialize(self) -> None:
        for parameter in self.param_groups[0]["params"]:
            self.state[parameter]["momentum"] = torch.zeros_like(parameter)

    def step(self, closure: Any = None) -> None:
        with torch.no_grad():
            for parameter in self.param_groups[0]["params"]:
                state = self.state[parameter]
                state["momentum"] = 0.5 * state["momentum"] + parameter.grad
                parameter -= 0.1 * state["momentum"]

    def state_names_to_sparsify(self) -> list[str]:
        return ["momentum"]


def test_a_recorded_rule_may_replace_its_state() -> None:
    optimizers: list[Heavy] = []

    def made(model: nn.Module) -> dict[str, torch.Tensor]:
        optimizers.append(Heavy(model.parameters(), {}))
        return {}

    def step(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
        loss = model(x).square().mean()
        optimizers[-1].zero_grad()
        loss.backward()
        optimizers[-1].step()
        return loss.detach()

    torch.manual_seed(2)
    model, x = nn.Linear(3, 2), torch.randn(4, 3)
    eager = copy.deepcopy(model)
    made(eager)
    expected = [step(eager, x).item() for _ in range(4)]
    np.testing.assert_allclose(run_compiled(model, step, [(x,)] * 4, made).values[:, 0], expected, rtol=1e-6)


def test_a_step_that_replaces_state_by_another_shape() -> None:
    model = nn.BatchNorm1d(3)

    def step(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
        model.running_mean = model(x)
        return x.sum()

    with pytest.raises(StepError, match=r"state 'running_mean' by float32\[4, 3\], expected float32\[3\]"):
        run_compiled(model, step, [(torch.randn(4, 3),)])


def _stepped(optimizer: optim.Optimizer, *parameters: nn.Parameter) -> None:
    for parameter in parameters:
        parameter.grad = torch.ones_like(parameter)
    optimizer.step()


def test_a_saved_state_is_written_into_the_existing_tensors() -> None:
    first, second = nn.Parameter(torch.ones(2)), nn.Parameter(torch.ones(2))
    saved, loaded = optim.Adam([first], lr=0.3), optim.Adam([second], lr=torch.tensor(0.1))
    _stepped(saved, first)
    before = dict(loaded.named_state())
    loaded.load_state_dict(saved.state_dict())
    after = dict(loaded.named_state())
    assert all(after[name] is tensor for name, tensor in before.items())
    assert after["param_groups.0.lr"].item() == pytest.approx(0.3)
    for name, value in saved.named_state():
        assert torch.equal(after[name], value)


def test_a_saved_state_is_loaded_onto_the_device() -> None:
    model, moved = nn.Linear(3, 2), nn.Linear(3, 2)
    saved = optim.AdamW(model.parameters())
    _stepped(saved, *model.parameters())
    move_to_device(moved)
    loaded = optim.AdamW(moved.parameters())
    before = dict(loaded.named_state())
    loaded.load_state_dict(saved.state_dict())
    assert {str(tensor.device) for tensor in before.values()} == {"xla:0"}
    for name, value in saved.named_state():
        assert torch.equal(before[name].cpu(), value)


def test_a_state_of_another_optimizer_is_refused() -> None:
    def adam(*sizes: int) -> optim.Optimizer:
        return optim.Adam([nn.Parameter(torch.ones(size)) for size in sizes])

    with pytest.raises(OptimizerStateError, match=r"\[1\] parameters, expected \[2\]"):
        adam(2, 2).load_state_dict(adam(2).state_dict())
    with pytest.raises(OptimizerStateError, match=r"parameter 1 has the shape \(3,\), expected \(2,\)"):
        adam(2, 2).load_state_dict(adam(2, 3).state_dict())
    sgd = optim.SGD([nn.Parameter(torch.ones(2))], lr=0.1, momentum=0.9)
    with pytest.raises(OptimizerStateError, match=r"parameter 0 has the saved states \['momentum_buffer'\]"):
        adam(2).load_state_dict(sgd.state_dict())


def test_groups_that_come_later_have_their_own_entries_and_state() -> None:
    first, second = nn.Parameter(torch.ones(2)), nn.Parameter(torch.ones(2))
    optimizer = optim.NAdam([first], lr=0.1)
    _stepped(optimizer, first)
    kept = optimizer.state[first]["exp_avg"].clone()
    optimizer.add_param_group({"params": [second], "lr": 0.0})
    assert list(optimizer.state[second]) == list(optimizer.state[first])
    assert torch.equal(optimizer.state[first]["exp_avg"], kept)
    _stepped(optimizer, first, second)
    assert torch.equal(second.detach(), torch.ones(2))


def test_hooks_and_visits_see_the_optimizer_and_its_state() -> None:
    parameter = nn.Parameter(torch.ones(2))
    optimizer = optim.SGD([parameter], lr=0.1, momentum=0.9)
    seen: list[tuple[str, bool]] = []
    before = optimizer.register_zero_grad_pre_hook(lambda *_: seen.append(("pre", parameter.grad is None)))
    optimizer.register_zero_grad_post_hook(lambda *_: seen.append(("post", parameter.grad is None)))
    _stepped(optimizer, parameter)
    optimizer.zero_grad()
    assert seen == [("pre", False), ("post", True)]
    before.remove()
    optimizer.zero_grad()
    assert seen[2:] == [("post", True)]
    optimizer.visit_state(lambda tensor: tensor + 1)
    assert torch.equal(optimizer.state[parameter]["momentum_buffer"], torch.full((2,), 2.0))
    optimizer.visit_state(lambda tensor: None)
    assert torch.equal(optimizer.state[parameter]["momentum_buffer"], torch.full((2,), 2.0))
    assert optimizer.apply(lambda it: it.param_groups[0].update(lr=1.0)).param_groups[0]["lr"] == 1.0
    copied = copy.deepcopy(optimizer)
    copied.zero_grad()
    assert copied.enable_global_step is False
    assert len(seen) == 3


def test_a_closure_computes_gradients() -> None:
    parameter = nn.Parameter(torch.ones(2))

    def closure() -> torch.Tensor:
        loss = parameter.square().sum()
        loss.backward()
        return loss

    loss = optim.SGD([parameter], lr=0.25).step(closure)
    assert loss is not None
    assert loss.item() == 2.0
    assert torch.equal(parameter.detach(), torch.full((2,), 0.5))


@pytest.mark.parametrize("name", ["adamw", "AdamW", "ADAMW"])
def test_optimizers_are_made_by_name(name: str, caplog: pytest.LogCaptureFixture) -> None:
    """Optimizers take their part of a configuration; the rest causes no warning."""
    given = {"learning_rate": 0.2, "weight_decay_rate": 0.3, "beta1": 0.8, "beta2": 0.9, "log_summaries": 1}
    with caplog.at_level(logging.INFO, "cstorch"):
        made = optim.configure_optimizer(name, [nn.Parameter(torch.ones(2))], **given)
    assert type(made) is optim.AdamW
    group = made.param_groups[0]
    assert (group["lr"], group["weight_decay"], group["betas"]) == (0.2, 0.3, (0.8, 0.9))
    assert not caplog.records
    kind, arguments = optim.configure_optimizer_params(name, given)
    assert kind is optim.AdamW
    assert arguments == {"lr": 0.2, "weight_decay": 0.3, "betas": (0.8, 0.9)}


def test_classes_of_a_program_are_made_by_name() -> None:
    class SignDescent(optim.SGD):
        pass

    class HalvingLR(optim.lr_scheduler.StepLR):
        pass

    made = optim.configure_optimizer("signdescent", [nn.Parameter(torch.ones(2))], lr=0.1, momentum=0.0)
    assert type(made) is SignDescent
    schedule = {"scheduler": "Halving", "initial_learning_rate": 0.1, "step_size": 2, "gamma": 0.5}
    assert type(optim.configure_lr_scheduler(made, schedule)) is HalvingLR


def test_classes_that_cannot_be_made_by_name_are_refused() -> None:
    parameters = [nn.Parameter(torch.ones(2))]
    with pytest.raises(OptimizerArgumentError, match="'LBFGS', expected one of ASGD, Adadelta"):
        optim.configure_optimizer("LBFGS", parameters)
    with pytest.raises(OptimizerArgumentError, match="both learning_rate and lr"):
        optim.configure_optimizer("SGD", parameters, lr=0.1, learning_rate=0.2)
    schedule = [{"scheduler": "Constant", "learning_rate": 0.1}]
    made = optim.configure_optimizer("Adam", parameters, learning_rate=schedule)
    assert made.param_groups[0]["lr"] == 1e-3


def test_parameters_without_decay_have_their_own_group() -> None:
    model = nn.Sequential(nn.Linear(3, 2), nn.LayerNorm(2))
    groups = optim.configure_param_groups(model, {"weight_decay": 0.1})
    assert [(len(group["params"]), group["weight_decay"]) for group in groups] == [(1, 0.1), (3, 0.0)]
    by_rank = optim.configure_param_groups(model, {"weight_decay_rate": 0.1}, lambda _, p: p.dim() > 1)
    assert [[tuple(p.shape) for p in group["params"]] for group in by_rank] == [[(2,), (2,), (2,)], [(2, 3)]]
    assert [group["weight_decay"] for group in optim.AdamW(by_rank).param_groups] == [0.1, 0.0]


@pytest.mark.parametrize("name", ["SGD", "Adam", "AdamW", "Adamax", "Adafactor", "NAdam", "Rprop"])
def test_optimizers_of_pytorch_have_replacements(name: str) -> None:
    theirs = getattr(torch.optim, name)
    assert optim.replacement(theirs) is getattr(optim, name)
    assert optim.replacement(type("Mine", (theirs,), {})) is getattr(optim, name)


def test_an_optimizer_that_reads_values_has_no_replacement() -> None:
    assert optim.replacement(torch.optim.LBFGS) is None


def test_a_variance_is_not_negative() -> None:
    parameter = nn.Parameter(torch.ones(64))
    optimizer = optim.RMSprop([parameter], lr=1e-9, alpha=0.5, centered=True)
    for _ in range(60):
        parameter.grad = torch.linspace(0.1, 1.7, 64)
        optimizer.step()
    assert torch.isfinite(parameter).all()


@pytest.mark.parametrize("shape", [(3, 5), (6, 2)], ids=str)
@pytest.mark.parametrize("nesterov", [True, False])
def test_muon_steps_as_torchs_does_in_float32(
    shape: tuple[int, int], nesterov: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.Tensor, "bfloat16", torch.Tensor.clone)  # in which torch orthogonalizes
    torch.manual_seed(1)
    ours = nn.Parameter(torch.randn(shape))
    theirs = nn.Parameter(ours.detach().clone())
    given = {"lr": 0.02, "weight_decay": 0.1, "momentum": 0.9, "nesterov": nesterov}
    pair = optim.Muon([ours], **given), torch.optim.Muon([theirs], **given)
    for _ in range(4):
        gradient = torch.randn(shape)
        for parameter, optimizer in zip((ours, theirs), pair, strict=True):
            parameter.grad = gradient.clone()
            optimizer.step()
        np.testing.assert_allclose(ours.detach(), theirs.detach(), rtol=1e-4, atol=1e-6)
    with pytest.raises(OptimizerArgumentError, match=r"shape \(3,\), expected parameters with two"):
        _stepped(optim.Muon([vector := nn.Parameter(torch.ones(3))]), vector)


class Scaled(nn.Module):
    """Layers with factors of their learning rates, and one without."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(2, 2)
        self.dense_layer = nn.Linear(2, 2)
        self.head = nn.Linear(2, 2)


def test_kinds_of_layers_have_their_own_learning_rates() -> None:
    factors = {"decoder_kernel": 0.5, "embedding": 2.0}
    given = {"weight_decay": 0.1, "adjust_learning_rate": factors}
    groups = optim.configure_param_groups(Scaled(), given)
    found = [(group["weight_decay"], group["adjust_learning_rate"], len(group["params"])) for group in groups]
    assert found == [(0.1, 0.5, 1), (0.1, 2.0, 1), (0.1, 1.0, 1), (0.0, 1.0, 2)]
    optimizer = optim.AdamW(groups)
    rate = optim.configure_lr_scheduler(optimizer, 0.25, factors)
    assert isinstance(rate, optim.lr_scheduler.ScalePerParamLR)
    assert [float(group["lr"]) for group in optimizer.param_groups] == [0.125, 0.5, 0.25, 0.25]
    with pytest.raises(
        OptimizerArgumentError, match="adjust_learning_rate has head, expected some of decoder"
    ):
        optim.configure_param_groups(Scaled(), {"adjust_learning_rate": {"head": 1.0}})
