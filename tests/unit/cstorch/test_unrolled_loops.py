"""Loops over the experts that have tokens, as libraries write them: what eager PyTorch gives."""

from __future__ import annotations

import copy
from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

import cstorch
from cs_toolkit.step import OPTIMIZER_STATE
from cstorch.errors import SelectionError, TensorReadError

from .conftest import run_compiled
from .test_tracing import traced

WIDTH, EXPERTS, TOKENS = 8, 4, 5


class Experts(nn.Module):
    """Each token goes to one expert, and few tokens to few experts."""

    def __init__(self, least: int) -> None:
        super().__init__()
        self.router = nn.Linear(WIDTH, EXPERTS)
        self.experts = nn.ModuleDict(
            {f"expert_{number}": nn.Linear(WIDTH, WIDTH) for number in range(EXPERTS)}
        )
        self.least = least

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        weights, chosen = self.router(x).softmax(-1).topk(1, -1)
        found, visited = torch.zeros_like(x), torch.zeros((), device=x.device)
        mask = functional.one_hot(chosen, EXPERTS).permute(2, 1, 0)
        for expert in torch.greater(mask.sum(dim=(-1, -2)), self.least).nonzero():
            number = expert[0]
            if number == EXPERTS:
                continue
            place, token = torch.where(mask[number])
            here = x[None, token].reshape(-1, WIDTH)
            here = self.experts[f"expert_{number}"](here) * weights[token, place, None]
            found.index_add_(0, token, here)
            visited += 1
        return (found**2).sum() + visited + (weights**2).sum()


class StackedExperts(Experts):
    """Experts in one tensor, and a mask that has one more, which no token goes to."""

    def __init__(self, least: int) -> None:
        super().__init__(least)
        self.stacked = nn.Parameter(0.3 * torch.randn(EXPERTS, WIDTH, WIDTH))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        weights, chosen = self.router(x).softmax(-1).topk(1, -1)
        found = torch.zeros_like(x)
        mask = functional.one_hot(chosen + self.least, EXPERTS + 1).permute(2, 1, 0)
        for expert in torch.greater(mask.sum(dim=(-1, -2)), 0).nonzero():
            number = expert[0]
            place, token = torch.where(mask[number])
            here = (x[token] @ self.stacked[number]) * weights[token, place, None]
            found.index_add_(0, token, here)
        return (found**2).sum() + (weights**2).sum()


class GuardedExperts(Experts):
    """A loop over all experts, which skips those without tokens."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        weights, chosen = self.router(x).softmax(-1).topk(1, -1)
        found = torch.zeros_like(x)
        for number in range(EXPERTS // 2):
            token, place = torch.where(chosen == number)
            if token.numel() == 0:
                continue
            here = self.experts[f"expert_{number}"](x[token])
            found.index_add_(0, token, here * weights[token, place, None])
        for number in range(EXPERTS // 2, EXPERTS):
            mask = (chosen == number).any(-1)
            if mask.any():
                found[mask] += self.experts[f"expert_{number}"](x[mask]) * weights[mask]
        return (found**2).sum() + (weights**2).sum()


@pytest.mark.parametrize("model", [Experts(0), Experts(1), GuardedExperts(0), StackedExperts(0)])
def test_experts_without_tokens_keep_their_weights_and_momentum(model: Experts) -> None:
    optimizers: dict[int, torch.optim.Optimizer] = {}

    def step(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
        model.zero_grad()
        loss = model(x)
        loss.backward()
        optimizers[id(model)].step()
        return loss.detach()

    def prepare(model: nn.Module) -> dict[str, torch.Tensor]:
        made = cstorch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        optimizers[id(model)] = made
        momenta = [state["momentum_buffer"] for state in made.state.values()]
        return {f"{OPTIMIZER_STATE}{number}": tensor for number, tensor in enumerate(momenta)}

    torch.manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.uniform_(-0.3, 0.3)
    eager = copy.deepcopy(model)
    optimizers[id(eager)] = torch.optim.SGD(eager.parameters(), lr=0.1, momentum=0.9)
    batches = [torch.randn(TOKENS, WIDTH) for _ in range(4)]
    found = run_compiled(model, step, [(x,) for x in batches], prepare)
    expected = [float(step(eager, x)) for x in batches]
    np.testing.assert_allclose(found.values[:, 0], expected, rtol=1e-5)
    for name, parameter in eager.named_parameters():
        got = found.state[f"state.model.{name}"]
        np.testing.assert_allclose(got, parameter.detach(), rtol=1e-4, atol=1e-6, err_msg=name)


def _carried(x: torch.Tensor) -> torch.Tensor:
    last = x.sum()
    for row in (x > 0).nonzero():
        last = last * 2 + row.sum()
    return last


def _left(x: torch.Tensor) -> torch.Tensor:
    found = torch.zeros_like(x)
    for row in (x > 0).nonzero():
        place = row + 1
        found += x
    return found + place


def _appended(x: torch.Tensor) -> torch.Tensor:
    found: list[torch.Tensor] = []
    for row in (x > 0).nonzero():
        found.append(row)
    return x


def _through_a_view(x: torch.Tensor) -> torch.Tensor:
    found = torch.zeros_like(x)
    part = found[:2]
    for row in (x > 0).nonzero():
        other = part
        other += row.sum()
    return found


def _guarded_mean(x: torch.Tensor) -> torch.Tensor:
    found = x.sum()
    mask = x > 0
    if mask.any():
        found = x[mask].mean()
    return found


def _guarded_count(x: torch.Tensor) -> torch.Tensor:
    count = x.sum()
    for column in range(2):
        place = x[:, column].nonzero()[:, 0]
        if place.numel() == 0:
            continue
        count += 1
    return count


def _guarded_places(x: torch.Tensor) -> torch.Tensor:
    found, place = torch.zeros_like(x), x.argmax(-1)
    if place.any():
        found[place] += 1  # writes row 0 where the guard is false
    return found


@pytest.mark.parametrize("program", [_guarded_mean, _guarded_count, _guarded_places])
def test_guards_of_more_than_writes_into_rows_are_refused(
    program: Callable[[torch.Tensor], torch.Tensor],
) -> None:
    with pytest.raises(TensorReadError, match=r"read by __bool__\(\)"):
        traced(lambda x: program(x.reshape(2, 2)), 4)


def _ended(x: torch.Tensor) -> torch.Tensor:
    for _ in (x > 0).nonzero():
        break
    return x


def _listed(x: torch.Tensor) -> torch.Tensor:
    return torch.stack([row * 2 for row in (x > 0).nonzero()])


@pytest.mark.parametrize("program", [_carried, _left, _appended, _through_a_view, _ended, _listed])
def test_bodies_that_do_more_than_write_into_tensors_are_refused(
    program: Callable[[torch.Tensor], torch.Tensor],
) -> None:
    with pytest.raises(SelectionError, match=r"test_unrolled_loops\.py:\d+: "):
        traced(program, 4)


def test_a_layer_with_state_in_the_body_is_refused() -> None:
    norm = nn.BatchNorm1d(3)

    def step(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
        found = torch.zeros_like(x)
        for row in (x[:, 0] > 0).nonzero():
            found += model(x) * row
        return found.sum()

    with pytest.raises(SelectionError, match="a tensor that it does not name"):
        run_compiled(norm, step, [(torch.randn(4, 3),)])
