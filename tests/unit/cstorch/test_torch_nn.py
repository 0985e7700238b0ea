"""Each layer and loss of torch.nn trains to eager's numbers, or is on the documented list with a clear error.

All models are traced as one step and compiled once; a test looks at its own.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from cgc.errors import UnsupportedOpsError
from cstorch.errors import NoShapeError

from .conftest import Compiled, in_numbers, run_compiled
from .layers import CONTAINERS, NOT_COMPILED, Case, Loss, cases

STEPS = 2
CASES = cases()
DOCS = Path(__file__).parents[3] / "docs" / "pytorch.md"


class AllModels(nn.Module):
    """The models of all cases side by side."""

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


def train_all(models: AllModels, *flat: torch.Tensor) -> list[torch.Tensor]:
    """A step of each model with its own part of the batch."""
    rest, losses = list(flat), []
    for case, model in zip(CASES, models.models, strict=True):
        batch, rest = rest[: len(case.batch)], rest[len(case.batch) :]
        losses.append(train(model, batch))
    return losses


@pytest.fixture(scope="module")
def compiled() -> Compiled:
    batch = [tensor for case in CASES for tensor in case.batch]
    return run_compiled(AllModels(CASES), train_all, [batch] * STEPS)


@pytest.mark.parametrize("index", range(len(CASES)), ids=[case.name for case in CASES])
def test_a_layer_trains_to_eagers_numbers(compiled: Compiled, index: int) -> None:
    case = CASES[index]
    model = copy.deepcopy(case.model)
    losses = [in_numbers(train(model, case.batch))[0] for _ in range(STEPS)]
    np.testing.assert_allclose(compiled.values[:, index], losses, rtol=3e-6, atol=1e-6)
    for name, expected in model.state_dict().items():
        got = compiled.state[f"state.model.models.{index}.{name}"]
        np.testing.assert_allclose(got, expected.numpy(), rtol=3e-6, atol=3e-6, err_msg=name)


def test_every_class_of_torch_nn_has_a_case_or_stands_on_the_list() -> None:
    public = {
        name
        for name in vars(nn)
        if isinstance(kind := getattr(nn, name), type) and issubclass(kind, nn.Module) and "Lazy" not in name
    }
    covered = {case.about for case in CASES} | set(NOT_COMPILED) | CONTAINERS
    # older names of other classes, and layers that call another one's function
    same = {"NLLLoss2d", "CrossMapLRN2d", "SyncBatchNorm", "RNNBase", "RNNCellBase", "DataParallel"}
    assert public - covered - same == set()


def test_the_documented_list_is_this_one() -> None:
    text = DOCS.read_text()
    assert set(re.findall(r"^\| `(\w+)` \|", text, re.M)) == set(NOT_COMPILED)


@pytest.mark.parametrize(
    ("loss", "target", "error"),
    [
        (nn.MultiMarginLoss(), torch.tensor([1, 0, 3, 2]), NoShapeError),
        (nn.MultiLabelMarginLoss(), torch.tensor([[3, 0, -1, 1, 2, 4]] * 4), NoShapeError),
    ],
    ids=["MultiMarginLoss", "MultiLabelMarginLoss"],
)
def test_a_loss_without_a_rule_is_named_with_its_line(
    loss: nn.Module, target: torch.Tensor, error: type[Exception]
) -> None:
    with pytest.raises(error, match=r"layers\.py:\d+: aten\.multi.*cannot be recorded"):
        run_compiled(
            Loss(loss, None), lambda model, *batch: train(model, batch), [(torch.randn(4, 6), target)]
        )


def test_all_operations_without_a_rule_are_listed_with_module_and_line(
    both_ways: Callable[..., object],
) -> None:
    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.noisy = nn.RReLU()
            self.bag = nn.EmbeddingBag(5, 3)

        def forward(self, x: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
            return self.noisy(x).sum() + self.bag(ids).sum()

    with pytest.raises(UnsupportedOpsError) as caught:
        run_compiled(
            Two(),
            lambda model, *batch: train(model, batch),
            [(torch.randn(4, 6), torch.zeros(2, 2, dtype=torch.int64))],
        )
    text = str(caught.value)
    for part in (
        "aten.rrelu_with_noise",
        "aten._embedding_bag",
        "'noisy', line",
        "'bag', line",
        "test_torch_nn.py:",
    ):
        assert part in text
