"""Steps written as people write them train to the numbers of eager PyTorch.

All are traced as one step and compiled once; a test looks at its own.
"""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
from torch import nn

from tests.programs.pytorch.training_steps import programs

from .conftest import Compiled, in_numbers, run_compiled

STEPS = 3
PROGRAMS = programs()


@pytest.fixture(scope="module")
def compiled() -> Compiled:
    models = nn.ModuleList(copy.deepcopy(model) for model, _, _ in PROGRAMS.values())

    def step(models: nn.ModuleList, *flat: torch.Tensor) -> list[torch.Tensor]:
        rest, losses = list(flat), []
        for model, (_, train, batch) in zip(models, PROGRAMS.values(), strict=True):
            own, rest = rest[: len(batch)], rest[len(batch) :]
            losses.append(train(model, *own))
        return losses

    batch = [tensor for _, _, tensors in PROGRAMS.values() for tensor in tensors]
    return run_compiled(models, step, [batch] * STEPS)


@pytest.mark.parametrize("name", PROGRAMS)
def test_it_trains_to_eagers_numbers(compiled: Compiled, name: str) -> None:
    model, step, batch = PROGRAMS[name]
    model, index = copy.deepcopy(model), list(PROGRAMS).index(name)
    losses = [in_numbers(step(model, *batch))[0] for _ in range(STEPS)]
    np.testing.assert_allclose(compiled.values[:, index], losses, rtol=1e-5)
    for key, expected in model.state_dict(keep_vars=True).items():
        got = compiled.state.get(f"state.model.{index}.{key}")
        if got is not None:  # the second name of tied weights has no state
            np.testing.assert_allclose(got, expected.detach().numpy(), rtol=1e-4, atol=1e-5, err_msg=key)
