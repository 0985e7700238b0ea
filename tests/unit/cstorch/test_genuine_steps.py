"""Imported steps compared with those of release 2.10: their interface, and the operations with kernels.

Elementwise operations differ in number: both fold and share them their own way, and here casts to 16 bits are
a pass.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional

from cgc.cirh import ops
from cgc.cirh.interface import step_interface
from cgc.importers.aten import import_step
from cs_toolkit.step import GLOBAL_STEP
from cstorch import optim
from cstorch.tracing.device import DeviceTensor
from cstorch.tracing.state import model_state, move_to_device
from cstorch.tracing.step import trace
from tests.programs.pytorch.language_models import TinyGPT

RECORDED = json.loads((Path(__file__).parents[2] / "golden" / "cstorch" / "cirh_steps.json").read_text())
TYPES = {"float32": "f32", "int32": "i32", "int64": "i64"}
WITH_KERNELS = (
    "Convolution FusedBatchNorm FusedBatchNormGrad Gather Gelu GeluGrad LayerNorm LayerNormGrad "
    "RandomUniform Relu ScatterNd Softmax SparseSoftmaxCrossEntropyWithLogits"
)


class Mlp(nn.Module):
    """Dense layers with dropout."""

    def __init__(self) -> None:
        super().__init__()
        sizes = [784, 500, 300, 10]
        self.layers = nn.ModuleList(nn.Linear(*pair) for pair in pairwise(sizes))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers[:-1]:
            x = functional.dropout(functional.relu(layer(x)), 0.1)
        return self.layers[-1](x)


class Cnn(nn.Module):
    """Convolutions with batch norms and pools."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(1, 8, 3, padding=1), nn.BatchNorm2d(8)
        self.conv2, self.bn2 = nn.Conv2d(8, 16, 3, padding=1, bias=False), nn.BatchNorm2d(16)
        self.fc = nn.Linear(784, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = functional.max_pool2d(functional.relu(self.bn1(self.conv1(x))), 2)
        x = functional.max_pool2d(functional.relu(self.bn2(self.conv2(x))), 2)
        return self.fc(x.flatten(1))


CASES: dict[str, tuple[type[nn.Module], Callable[[Any], optim.Optimizer], list[torch.Tensor]]] = {
    "mlp_adamw": (
        Mlp,
        lambda parameters: optim.AdamW(parameters, lr=0.001, weight_decay=0.01),
        [torch.ones(16, 784), torch.ones(16, dtype=torch.int32)],
    ),
    "cnn_sgdm": (
        Cnn,
        lambda parameters: optim.SGD(parameters, lr=0.01, momentum=0.9),
        [torch.ones(4, 1, 28, 28), torch.ones(4, dtype=torch.int32)],
    ),
    "gpt_block_adamw_dls": (
        TinyGPT,
        lambda parameters: optim.AdamW(parameters, lr=0.001, weight_decay=0.1),
        [torch.ones(2, 16, dtype=torch.int32), torch.ones(2, 16, dtype=torch.int32)],
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_the_step_is_that_of_the_release(name: str) -> None:
    kind, make, tensors = CASES[name]
    model, expected = kind(), RECORDED[name]
    move_to_device(model)
    optimizer, batch = make(model.parameters()), list(map(DeviceTensor, tensors))

    def step() -> dict[str, torch.Tensor]:
        loss = functional.cross_entropy(model(batch[0]), batch[1].flatten().long())
        loss.backward()
        optimizer.step()
        return {"loss": loss}

    module = import_step(trace(step, batch, model_state(model), [model]).graph, mode="train", seed=1)
    interface = step_interface(module)
    found = {spec.name: _type(spec) for spec in (*interface.state, *interface.inputs)}
    # a tied weight has the first of its names here, and there the last
    ours = {key.replace(".wte.", ".head."): value for key, value in found.items() if key != GLOBAL_STEP}
    apart = ("state.grad_scaler.", "state.schedulers.")  # here a part of the optimizer's state
    assert ours == {key: value for key, value in expected["inputs"].items() if not key.startswith(apart)}

    counts = Counter(op.name.removeprefix("cirh.") for op in module.walk())
    theirs = Counter({key.removeprefix("cirh."): value for key, value in expected["ops"].items()})
    for op in WITH_KERNELS.split():
        assert counts[op] == theirs[op], op
    products = ("MatMul", "DotGeneral")
    assert sum(counts[op] for op in products) == sum(theirs[op] for op in products)


def _type(spec: Any) -> str:
    sizes = "x".join(map(str, (*spec.shape, TYPES[spec.dtype])))
    return f"tensor<{sizes}>"


def test_every_operation_of_the_release_is_one_of_ours() -> None:
    ours = {op.name for op in vars(ops).values() if isinstance(op, type) and hasattr(op, "name")}
    assert {op for case in RECORDED.values() for op in case["ops"]} <= ours
