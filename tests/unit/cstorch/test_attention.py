"""Every way to write attention is one kernel and computes the numbers of eager PyTorch."""

from __future__ import annotations

import copy
from collections import Counter

import numpy as np
import pytest
import torch
from torch import nn

from cgc.importers.aten import import_step
from cgc.kernels import match_kernels
from cgc.passes.pipeline import run_pipeline
from cstorch.tracing.device import DeviceTensor
from cstorch.tracing.state import model_state, move_to_device
from cstorch.tracing.step import trace
from tests.programs.pytorch.attention import ATTENTIONS, BATCH, FULLY_MASKED, LENGTH, WIDTH

from .conftest import run_module


def _step(model: nn.Module, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    loss = model(x, mask).square().sum()
    loss.backward()
    with torch.no_grad():
        for parameter in model.parameters():
            assert parameter.grad is not None
            parameter.sub_(parameter.grad, alpha=0.05)
            parameter.grad = None
    return loss.detach()


@pytest.mark.parametrize("name", ATTENTIONS)
def test_attention_is_one_kernel_with_the_numbers_of_eager_pytorch(name: str) -> None:
    torch.manual_seed(1)
    model, x = ATTENTIONS[name](), torch.randn(BATCH, LENGTH, WIDTH)
    mask = torch.tensor([[1, 1, 1, 1, 0, 0], [int(name not in FULLY_MASKED)] * LENGTH])
    eager = copy.deepcopy(model)
    expected = [float(_step(eager, x, mask)) for _ in range(3)]

    move_to_device(model)
    inputs = [DeviceTensor(x), DeviceTensor(mask)]
    traced = trace(lambda: _step(model, *inputs), inputs, model_state(model), [model])
    module = import_step(traced.graph, mode="train", seed=0)
    run_pipeline(module, verify=True)
    families = Counter(kernel.family for kernel in match_kernels(module).kernels)
    assert families["attention"] == 1, families
    assert families["fully_connected"] == (2 if name == "encoder" else 0)
    assert not families["matmul"]
    assert not families["data_movement"]

    losses = run_module(module, traced, [(x, mask)] * 3).values[:, 0]
    np.testing.assert_allclose(losses, expected, rtol=1e-5)
