"""Each layer and loss of torch.nn trains to eager's numbers, or is on the documented list with a clear error.

A group of models is traced as one step and compiled once; a test looks at its own. All in one step took XLA
longer: its time grows faster than the size of a step.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Callable, Sequence
from functools import cache

import numpy as np
import pytest
import torch
from torch import nn

from cgc.errors import UnsupportedOpsError

from .conftest import Compiled, in_numbers, run_compiled
from .layers import CONTAINERS, Case, cases

STEPS = 2
CASES = cases()
GROUP = 12
"""So many models are compiled together."""


class ModelsOf(nn.Module):
    """The models of some cases side by side."""

    def __init__(self, chosen: Sequence[Case]) -> None:
        super().__init__()
        self.models = nn.ModuleList(copy.deepcopy(case.model) for case in chosen)


def train(model: nn.Module, batch: Sequence[torch.Tensor]) -> torch.Tensor:
    """One step of gradient descent on the mean square of what a model returns."""
    out = model(*batch)
    loss = (out * out).mean() + sum((0.01 * (p * p).sum() for p in model.parameters()), torch.zeros(()))
    gradients = torch.autograd.grad(loss, list(model.parameters()), allow_unused=True)
    with torch.no_grad():
        for parameter, gradient in zip(model.parameters(), gradients, strict=True):
            if gradient is not None:
                parameter.add_(gradient, alpha=-0.1)
    return loss.detach()


@pytest.fixture(scope="module")
def compiled() -> Callable[[int], Compiled]:
    """The steps of a group of cases, by its number."""

    @cache
    def compiled_group(number: int) -> Compiled:
        chosen = CASES[number * GROUP :][:GROUP]

        def train_all(models: ModelsOf, *flat: torch.Tensor) -> list[torch.Tensor]:
            rest, losses = list(flat), []
            for case, model in zip(chosen, models.models, strict=True):
                batch, rest = rest[: len(case.batch)], rest[len(case.batch) :]
                losses.append(train(model, batch))
            return losses

        batch = [tensor for case in chosen for tensor in case.batch]
        return run_compiled(ModelsOf(chosen), train_all, [batch] * STEPS)

    return compiled_group


@pytest.mark.parametrize("index", range(len(CASES)), ids=[case.name for case in CASES])
def test_a_layer_trains_to_eagers_numbers(compiled: Callable[[int], Compiled], index: int) -> None:
    case, found, place = CASES[index], compiled(index // GROUP), index % GROUP
    model = copy.deepcopy(case.model)
    losses = [in_numbers(train(model, case.batch))[0] for _ in range(STEPS)]
    np.testing.assert_allclose(found.values[:, place], losses, rtol=3e-6, atol=1e-6)
    for name, expected in model.state_dict().items():
        got = found.state[f"state.model.models.{place}.{name}"]
        np.testing.assert_allclose(got, expected.numpy(), rtol=3e-6, atol=3e-6, err_msg=name)


def test_every_class_of_torch_nn_has_a_case() -> None:
    public = {
        name
        for name in vars(nn)
        if isinstance(kind := getattr(nn, name), type) and issubclass(kind, nn.Module) and "Lazy" not in name
    }
    covered = {case.about for case in CASES} | CONTAINERS
    # older names of other classes, and layers that call another one's function
    same = {"NLLLoss2d", "CrossMapLRN2d", "SyncBatchNorm", "RNNBase", "RNNCellBase", "DataParallel"}
    assert public - covered - same == set()


class Branch(nn.Module):
    """Two operations without a rule."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.special.bessel_j0(x) + torch.special.bessel_j1(x).sum()


class Trunk(nn.Module):
    """Three in two modules, and on the last one a size that depends on the data."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(6, 6)
        self.branch = Branch()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.branch(self.first(x)) + torch.special.airy_ai(x).sum()
        return found


@pytest.mark.parametrize("sized", [True, False])
def test_all_operations_without_a_rule_are_listed_with_module_and_line(sized: bool) -> None:
    def step(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = model(x)
        return found if sized else found + torch.unique(x).sum()

    with pytest.raises(UnsupportedOpsError) as caught:
        run_compiled(Trunk(), step, [(torch.randn(4, 6),)])
    lines = str(caught.value).splitlines()
    expected = ["aten.special_bessel_j0", "aten.special_bessel_j1", "aten.special_airy_ai"]
    assert [line.split(".default")[0].strip() for line in lines[1:4]] == expected
    for line in lines[1:3]:
        assert re.search(r"module 'branch', line .*test_torch_nn\.py:\d+", line), line
    assert re.search(r"airy_ai.default: line .*test_torch_nn\.py:\d+", lines[3])
    if not sized:
        assert "aten._unique2" in lines[4]
        assert "size that depends on the data; use torch.where" in lines[4]


def test_functions_of_complex_numbers_without_a_rule_are_refused_with_a_cure() -> None:
    def step(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
        return torch.view_as_complex(x.reshape(4, 3, 2)).asinh().real.sum()

    with pytest.raises(UnsupportedOpsError, match="write it with their real and imaginary parts"):
        run_compiled(nn.Linear(1, 1), step, [(torch.randn(4, 6),)])
