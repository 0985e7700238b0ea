"""Loss scaling against another implementation, eager and traced once; whole optimizer steps."""

from __future__ import annotations

import copy
import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import cstorch
from cstorch import amp
from cstorch.errors import StepError
from cstorch.tracing.precision import half_dtype, mix_precision, name_half_dtype

from .conftest import BothWays

ORACLE = json.loads((Path(__file__).parents[2] / "golden" / "cstorch" / "grad_scaler.json").read_text())


class Momentum(torch.optim.Optimizer):
    """SGD with momentum whose state exists from the start."""

    def __init__(self, params: list[nn.Parameter], lr: torch.Tensor | float, momentum: float = 0.0) -> None:
        super().__init__(params, {"lr": lr, "momentum": momentum})
        if momentum:
            for p in params:
                self.state[p]["momentum_buffer"] = torch.zeros_like(p, requires_grad=False)

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            for p in group["params"]:
                change = p.grad
                if group["momentum"]:
                    change = self.state[p]["momentum_buffer"].mul_(group["momentum"]).add_(p.grad)
                p.sub_(change * group["lr"])


def _numbers(nested: Any) -> Any:
    if isinstance(nested, list):
        return [_numbers(item) for item in nested]
    return float(nested)


@pytest.fixture(autouse=True)
def _float16() -> Any:
    before = half_dtype()
    yield
    name_half_dtype(before)
    mix_precision(False)


@pytest.mark.parametrize("case", ORACLE["cases"], ids=lambda case: case["name"])
def test_scales_counts_and_parameters(case: dict[str, Any]) -> None:
    amp.set_half_dtype(case["half_dtype"])
    scaler = amp.GradScaler(**{"overflow_tolerance": 0.0, **case["kwargs"]})
    for name in ("max_loss_scale", "min_loss_scale", "steps_per_increase", "dynamic"):
        assert getattr(scaler, name) == case["init"][name]
    assert float(scaler.get_scale()) == case["init"]["loss_scale"]
    parameters = [nn.Parameter(torch.tensor(_numbers(values))) for values in case["params"]]
    lr = torch.tensor(case["optimizer"]["kwargs"]["lr"])
    optimizer = Momentum(parameters, lr, case["optimizer"]["kwargs"].get("momentum", 0.0))
    epoch = torch.tensor(0.0)
    for i, (grads, row) in enumerate(zip(case["grads"], case["table"], strict=False)):
        assert float(scaler.loss_scale) == pytest.approx(row["scale_used"])
        for parameter, grad in zip(parameters, grads, strict=True):
            parameter.grad = scaler.scale(torch.tensor(_numbers(grad)))
        if "scheduler" in case:
            lr.copy_(0.1 * (1 - epoch / 20))
        scaler.unscale_(optimizer)
        scaler.unscale_(optimizer)
        scaler.step(optimizer)
        if "scheduler" in case:
            epoch += optimizer.step_applied
            assert float(epoch) == row["last_epoch"]
        scaler.update()
        assert float(scaler.loss_scale) == pytest.approx(row["loss_scale"])
        for name in ("steps_since_rescale", "overflows_since_rescale", "num_skipped_steps"):
            assert float(getattr(scaler, name)) == row.get(name, 0), (i, name)
        for parameter, expected in zip(parameters, case["params_after"][i], strict=True):
            np.testing.assert_allclose(parameter.detach().numpy(), expected, 1e-6, 1e-7)
    assert sorted(scaler.state_dict()) == sorted(
        ["loss_scale", "steps_since_rescale", "overflows_since_rescale", "num_skipped_steps"]
        if case["init"]["dynamic"]
        else []
    )


class Trained(nn.Module):
    """A line, the state of its optimizer, and a scaler."""

    def __init__(self, scaler: amp.GradScaler) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.tensor([0.5, -0.25]))
        self.register_buffer("momentum", torch.zeros(2))
        self.register_buffer("epoch", torch.tensor(0.0))
        self.scaler = scaler
        self.momentum: torch.Tensor
        self.epoch: torch.Tensor


def _limits(**limits: float) -> Callable[..., torch.Tensor]:
    def step(model: Trained, x: torch.Tensor) -> torch.Tensor:
        optimizer = Momentum([model.weight], 0.1, 0.0)
        optimizer.param_groups[0]["momentum"] = 0.9
        optimizer.state[model.weight]["momentum_buffer"] = model.momentum
        loss = ((x * model.weight).sum() - 1).square()
        amp.optimizer_step(loss, optimizer, model.scaler, **limits)
        model.epoch.add_(getattr(optimizer, "step_applied", 1))
        return loss.detach()

    return step


BATCHES = [(torch.tensor(x),) for x in ([1.0, 2.0], [3e38, 1.0], [0.5, -1.0], [1.0, 1.0], [2.0, 0.5])]


@pytest.mark.parametrize("limits", [{}, {"max_gradient_norm": 0.3}, {"max_gradient_val": 0.2}], ids=str)
def test_traced_once_it_is_the_eager_run(
    both_ways: Callable[..., BothWays], limits: dict[str, float]
) -> None:
    scaler = amp.GradScaler("dynamic", init_scale=8.0, steps_per_increase=2, overflow_tolerance=0.0)
    found = both_ways(Trained(scaler), _limits(**limits), *BATCHES)
    np.testing.assert_allclose(found.compiled.values, found.eager, 1e-6)
    for name, expected in found.eager_state.items():
        np.testing.assert_allclose(found.compiled.state[f"state.model.{name}"], expected, 1e-6, 1e-7, name)
    assert found.eager_state["scaler.num_skipped_steps"] == 1
    assert found.eager_state["epoch"] == len(BATCHES) - 1
    assert found.eager_state["scaler.loss_scale"] == 8  # halved by the second batch, doubled by the last


@pytest.mark.parametrize("norm", [None, 0.3, 100.0])
def test_a_step_without_a_scaler_is_that_of_plain_torch(norm: float | None) -> None:
    torch.manual_seed(4)
    x = torch.randn(8, 3)
    models = [nn.Linear(3, 2), nn.Linear(3, 2), nn.Linear(3, 2)]
    for model in models[1:]:
        model.load_state_dict(models[0].state_dict())
    plain, bare, static = models
    plain(x).square().sum().backward()
    if norm is not None:
        nn.utils.clip_grad_norm_(plain.parameters(), norm)
    torch.optim.SGD(plain.parameters(), 0.1).step()
    for model, scaler in ((bare, None), (static, amp.GradScaler(1024.0))):
        loss = model(x).square().sum()
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        amp.optimizer_step(loss, optimizer, scaler, max_gradient_norm=norm)
        for ours, expected in zip(model.parameters(), plain.parameters(), strict=True):
            torch.testing.assert_close(ours, expected, rtol=1e-6, atol=1e-7)


def test_a_step_with_two_optimizers_holds_back_the_one_that_overflowed() -> None:
    scaler = amp.GradScaler("dynamic", init_scale=4.0)
    parameters = [nn.Parameter(torch.ones(1)), nn.Parameter(torch.ones(1))]
    optimizers = [Momentum([p], 0.5) for p in parameters]
    for parameter, grad in zip(parameters, (1.0, float("nan")), strict=True):
        parameter.grad = torch.tensor([4 * grad])
    for optimizer in optimizers:
        scaler.step(optimizer)
    scaler.update()
    assert [p.item() for p in parameters] == [0.5, 1.0]
    assert float(scaler.get_scale()) == 2
    other = amp.GradScaler("dynamic")
    other.load_state_dict(scaler.state_dict())
    assert (float(other.loss_scale), float(other.num_skipped_steps)) == (2, 1)


def test_default_arguments_and_other_forms_of_a_call() -> None:
    amp.set_half_dtype("cbfloat16")
    assert float(amp.GradScaler("dynamic").loss_scale) == 2.0**31
    assert amp.use_bfloat16() is torch.bfloat16
    assert float(amp.GradScaler().loss_scale) == 1
    with pytest.raises(ValueError, match="got loss_scale=inf, expected a positive, finite number"):
        amp.GradScaler(math.inf)
    scaler = amp.GradScaler(loss_scale="8")
    assert float(scaler(torch.tensor(2.0))) == 16
    assert [float(x) for x in scaler.scale([torch.tensor(1.0), torch.tensor(2.0)])] == [8, 16]


def test_bad_arguments() -> None:
    for bad in ({"loss_scale": "bogus"}, {"loss_scale": -1.0}, {"min_loss_scale": 2.0**-20}):
        with pytest.raises(ValueError, match=r"got .*, expected"):
            amp.GradScaler(**bad)
    with pytest.raises(ValueError, match="16-bit type float8, expected"):
        amp.set_half_dtype("float8")
    parameter = nn.Parameter(torch.ones(1))
    parameter.grad = torch.ones(1)
    optimizer, scaler = Momentum([parameter], 0.1), amp.GradScaler("dynamic")
    scaler.step(optimizer)
    with pytest.raises(RuntimeError, match=r"expected update\(\) between"):
        scaler.step(optimizer)
    with pytest.raises(ValueError, match=r"new_scale=2\.0"):
        scaler.update(new_scale=2.0)
    scaler.update()
    with pytest.raises(StepError, match="Adam makes state in its step"):
        scaler.step(torch.optim.Adam([parameter]))
    loss = parameter.sum()
    for arguments in (
        {"loss": 1.0},
        {"loss": loss, "max_gradient_norm": -1.0},
        {"loss": loss, "max_gradient_norm": 1.0, "max_gradient_val": 1.0},
        {"loss": loss, "max_gradient_norm": 1.0, "max_gradient_value": 1.0},
    ):
        with pytest.raises(ValueError, match=r"got .*, expected"):
            amp.optimizer_step(optimizer=optimizer, **arguments)


def test_the_type_of_activations_follows_mixed_precision() -> None:
    assert amp.get_floating_point_dtype() is torch.float32
    assert amp.get_floating_point_dtype_str("float64") == "float64"
    assert amp.set_half_dtype("cbfloat16") is amp.get_half_dtype() is torch.float16
    assert amp.mixed_precision()
    assert amp.get_floating_point_dtype() is torch.float16
    assert amp.get_floating_point_dtype_str() == amp.get_half_dtype_str() == "cbfloat16"
    amp.enable_mixed_precision(False)
    assert not amp.mixed_precision()
    assert amp.get_half_dtype_str() == "cbfloat16"


class Recipes:
    """Functions that a program registers."""

    @staticmethod
    def product(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return x * y


def test_functions_choose_the_type_they_compute_in() -> None:
    half, single = torch.ones(2, dtype=torch.bfloat16), torch.ones(2)
    kinds = {
        amp.half_function: torch.bfloat16,
        amp.float_function: torch.float32,
        amp.promote_function: torch.float32,
    }
    amp.set_half_dtype("bfloat16")
    for kind, dtype in kinds.items():
        function = kind(Recipes.product)
        assert function(half, y=single).dtype is dtype
        with amp.disable_casts():
            assert function(half, y=half).dtype is torch.bfloat16
    amp.init(enabled=False)
    assert amp.half_function(Recipes.product)(single, single).dtype is torch.float32


def test_a_function_that_is_registered_twice_casts_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Recipes, "product", staticmethod(Recipes.product))
    amp.set_half_dtype("bfloat16")
    amp.register_half_function(Recipes, "product")
    amp.register_float_function(Recipes, "product")
    assert Recipes.product(torch.ones(1).bfloat16(), torch.ones(1).bfloat16()).dtype is torch.float32
    with pytest.raises(ValueError, match="has no function 'sum'"):
        amp.register_promote_function(Recipes, "sum")


def test_more_tensors_are_restored_with_an_undone_step() -> None:
    weight, mask = nn.Parameter(torch.ones(2)), torch.ones(2)
    optimizer = Momentum([weight], 0.1)
    amp.update_if_finite(optimizer, mask)
    optimizer.register_step_post_hook(lambda *_: mask.zero_())
    scaler = amp.GradScaler("dynamic", init_scale=2.0, min_loss_scale=2.0, overflow_tolerance=0.0)
    for grad, kept in ((math.inf, 1.0), (1.0, 0.0)):
        weight.grad = torch.full((2,), grad)
        assert bool(amp.isfinite(optimizer)) is math.isfinite(grad)
        scaler.step(optimizer)
        scaler.update()
        assert float(mask[0]) == kept
    assert float(scaler.get_num_skipped_steps()) == 1
    weight.grad = torch.full((2,), math.nan)
    scaler.step(optimizer)
    scaler.update()
    assert (float(scaler.get_scale()), float(scaler.get_non_clamped_scale())) == (2.0, 1.0)


@pytest.mark.parametrize("wanted", [True, False])
def test_a_model_of_the_cpu_backend_computes_as_in_autocast(fresh_process: None, wanted: bool) -> None:
    """Programs of release 2.0 ask the backend for mixed precision, and give images in bfloat16."""
    amp.use_bfloat16(True)
    torch.manual_seed(3)
    plain = nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 36, 3))
    model = cstorch.compile(copy.deepcopy(plain), cstorch.backend("CPU", mixed_precision=wanted))
    x = torch.randn(2, 1, 8, 8)
    if wanted:
        x = x.bfloat16()
    with torch.autocast("cpu", torch.bfloat16, enabled=wanted):
        expected = plain(x)
    found = model(x)
    assert found.dtype == (torch.bfloat16 if wanted else torch.float32)
    torch.testing.assert_close(found, expected, rtol=0, atol=0)
    for output in (found, expected):
        output.float().square().sum().backward()
    for ours, theirs in zip(model.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(ours.grad, theirs.grad, rtol=0, atol=0)
    with pytest.raises(RuntimeError, match="cannot be multiplied"):
        model(x[..., :-1])
    assert not torch.is_autocast_enabled("cpu")
