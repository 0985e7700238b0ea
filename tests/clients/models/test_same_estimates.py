"""The same networks in TensorFlow and in PyTorch: the same kernels, and the same rate on the CS system."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import nn
from xdsl.dialects.builtin import ModuleOp

from benchmarks.example_step import example_step
from cgc.importers.aten import import_step
from cgc.kernels import match_kernels
from cgc.passes.pipeline import run_pipeline
from cgc.performance import estimate
from cgc.placement import place
from cs_toolkit.fabric import load_fabric
from cstorch.amp import GradScaler, optimizer_step
from cstorch.optim import AdamW
from cstorch.tracing.device import DeviceTensor
from cstorch.tracing.state import model_state, move_to_device
from cstorch.tracing.step import trace
from models.bert.pytorch.model import Bert
from models.fc_mnist.pytorch.model import FcMnist
from tests.programs.pytorch.language_models import GPT2Loss

BATCH, LENGTH = 4, 64
LAYERS = {
    "hidden_size": 256,
    "num_hidden_layers": 1,
    "num_heads": 4,
    "filter_size": 1024,
    "vocab_size": 500,
    "max_position_embeddings": LENGTH,
    "dropout_rate": 0.1,
}
TEXT = {"model": LAYERS, "train_input": {"batch_size": BATCH, "max_sequence_length": LENGTH}}
DIGITS = {"train_input": {"batch_size": BATCH}}
IDS = (torch.zeros(BATCH, LENGTH, dtype=torch.int64),) * 2
PIXELS = (torch.zeros(BATCH, 784), torch.zeros(BATCH, dtype=torch.int64))
IN_TORCH = {
    "model": {
        **LAYERS,
        "layer_norm_epsilon": 1e-5,
        "initializer_range": 0.02,
        "input_size": 784,
        "hidden_sizes": [500, 300],
        "dropout": 0.2,
    }
}

_SINGLE_NUMBERS = ("reduction", "control")
"""Families of sums of the loss and of what schedules and scales compute, in each framework's way."""


@dataclass(frozen=True)
class Estimate:
    """Kernels by family, and samples a second."""

    families: Counter[str]
    samples_per_s: float


def _estimate(module: ModuleOp) -> Estimate:
    run_pipeline(module)
    kernels, fabric = match_kernels(module), load_fabric()
    found = estimate(kernels, place(kernels, fabric), fabric)
    families = Counter(kernel.family for kernel in kernels.kernels if kernel.family not in _SINGLE_NUMBERS)
    return Estimate(families, found.overall.samples_per_s)


def _in_torch(model: nn.Module, tensors: tuple[torch.Tensor, ...]) -> Estimate:
    """A step as of the examples: AdamW, clipping, a dynamic loss scale."""
    whole = nn.ModuleList([model, GradScaler("dynamic")])
    move_to_device(whole)
    optimizer = AdamW(model.parameters(), lr=1e-3, weight_decay=0.01)
    batch = [DeviceTensor(tensor) for tensor in tensors]

    def step() -> torch.Tensor:
        loss = model(tuple(batch))
        optimizer_step(loss, optimizer, whole[1], max_gradient_norm=1.0)
        return loss.detach()

    traced = trace(step, batch, model_state(whole), [whole])
    return _estimate(import_step(traced.graph, mode="train", seed=1))


def _in_tensorflow(name: str, file: str, changes: dict[str, dict[str, Any]]) -> Estimate:
    return _estimate(example_step(name, file, changes))


@pytest.mark.parametrize(
    ("name", "file", "changes", "network", "tensors"),
    [
        ("fc_mnist", "params_fc_mnist.yaml", DIGITS, FcMnist, PIXELS),
        ("gpt2", "params_gpt2_small.yaml", TEXT, GPT2Loss, IDS),
    ],
)
def test_kernels_and_rate_do_not_depend_on_the_framework(
    name: str, file: str, changes: Any, network: Any, tensors: tuple[torch.Tensor, ...]
) -> None:
    found, expected = _in_torch(network(IN_TORCH), tensors), _in_tensorflow(name, file, changes)
    assert found.families == expected.families
    assert found.samples_per_s == pytest.approx(expected.samples_per_s, rel=0.02)


def test_an_encoder_has_the_same_layers_and_rate() -> None:
    """TensorFlow's BERT also has segments and the task of the next sentence, and asks for a few tokens."""
    found, expected = _in_torch(Bert(IN_TORCH), IDS), _in_tensorflow("bert", "params_bert_base.yaml", TEXT)
    for family in ("attention", "layer_norm", "nlin", "pos_encoding"):
        assert found.families[family] == expected.families[family]
    assert found.samples_per_s == pytest.approx(expected.samples_per_s, rel=0.05)
