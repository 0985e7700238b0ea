"""Attention in the manners of PyTorch programs: one kernel, and the numbers of eager PyTorch."""

from __future__ import annotations

import copy
import math
from collections import Counter
from collections.abc import Callable

import jax
import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

from cgc.cirh.interface import step_interface
from cgc.importers.aten import import_step
from cgc.kernels import match_kernels
from cgc.lowering.interpret import step_function
from cgc.passes.pipeline import run_pipeline
from cs_toolkit.step import GLOBAL_STEP
from cstorch.tracing.device import DeviceTensor
from cstorch.tracing.state import model_state, move_to_device
from cstorch.tracing.step import trace
from cstorch.tracing.values import to_array
from models.gpt2.pytorch import model as gpt2

BATCH, LENGTH, WIDTH, HEADS = 2, 6, 8, 2
Core = Callable[["Attention", torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]


class Attention(nn.Module):
    """Projections around a core that gets queries, keys and values by heads, and which tokens are there."""

    def __init__(self, core: Core, key_heads: int = HEADS) -> None:
        super().__init__()
        self.core, self.key_heads = core, key_heads
        self.project = nn.Linear(WIDTH, WIDTH + 2 * key_heads * WIDTH // HEADS)
        self.out = nn.Linear(WIDTH, WIDTH)
        self.drop = nn.Dropout(0.0)
        self.register_buffer("lower", torch.tril(torch.ones(LENGTH, LENGTH)).view(1, 1, LENGTH, LENGTH))
        self.register_buffer("later", torch.triu(torch.ones(LENGTH, LENGTH), diagonal=1).bool())
        self.lower: torch.Tensor
        self.later: torch.Tensor

    def forward(self, x: torch.Tensor, there: torch.Tensor) -> torch.Tensor:
        size = WIDTH // HEADS
        parts = self.project(x).split([WIDTH, self.key_heads * size, self.key_heads * size], dim=2)
        q, k, v = (part.view(*x.shape[:2], -1, size).transpose(1, 2) for part in parts)
        found = self.core(self, q, k, v, there).transpose(1, 2).contiguous().view(x.shape)
        out: torch.Tensor = self.out(found)
        return out


def _lower_triangle(m, q, k, v, there):  # type: ignore[no-untyped-def]
    att = (q @ k.transpose(-2, -1)) * (1.0 / math.sqrt(k.size(-1)))
    att = att.masked_fill(m.lower[:, :, :LENGTH, :LENGTH] == 0, float("-inf"))
    return m.drop(functional.softmax(att, dim=-1)) @ v


def _flags_of_later(m, q, k, v, there):  # type: ignore[no-untyped-def]
    scores = torch.einsum("bhid,bhjd->bhij", q, k) / q.shape[-1] ** 0.5
    scores.masked_fill_(m.later, -torch.inf)
    return torch.einsum("bhij,bhjd->bhid", torch.softmax(scores, dim=-1), v)


def _added(m, q, k, v, there):  # type: ignore[no-untyped-def]
    extended = (1.0 - there[:, None, None, :].to(q.dtype)) * torch.finfo(q.dtype).min
    weights = nn.functional.softmax(torch.matmul(q, k.transpose(2, 3)) / math.sqrt(4) + extended, dim=-1)
    return torch.matmul(weights, v)


def _chosen(m, q, k, v, there):  # type: ignore[no-untyped-def]
    causal = torch.ones((LENGTH, LENGTH), dtype=torch.uint8, device=q.device).tril().bool()
    least = torch.full([], torch.finfo(q.dtype).min, dtype=q.dtype, device=q.device)
    return torch.where(causal, q @ k.mT * 0.5, least).softmax(-1) @ v


def _hidden_by_the_batch(m, q, k, v, there):  # type: ignore[no-untyped-def]
    scores = torch.matmul(q, k.transpose(-2, -1)) / math.sqrt(q.size(-1))
    mask = (there > 0).unsqueeze(1).repeat(1, LENGTH, 1).unsqueeze(1)
    return torch.matmul(m.drop(functional.softmax(scores.masked_fill(mask == 0, -1e9), dim=-1)), v)


def _merged(m, q, k, v, there):  # type: ignore[no-untyped-def]
    q, k, v = (x.reshape(BATCH * HEADS, LENGTH, -1) for x in (q * 0.5, k, v))
    mask = torch.full((LENGTH, LENGTH), -1e9, device=q.device).triu(1)
    return torch.bmm((torch.bmm(q, k.transpose(1, 2)) + mask).softmax(2), v).view(BATCH, HEADS, LENGTH, -1)


def _function(**settings):  # type: ignore[no-untyped-def]
    return lambda m, q, k, v, there: functional.scaled_dot_product_attention(q, k, v, **settings)


def _function_of_flags(m, q, k, v, there):  # type: ignore[no-untyped-def]
    return functional.scaled_dot_product_attention(q, k, v, there[:, None, None, :] > 0)


def _function_of_numbers(m, q, k, v, there):  # type: ignore[no-untyped-def]
    mask = torch.zeros(there.shape, device=there.device).masked_fill(there == 0, -1e9)[:, None, None]
    return functional.scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=0.4)


class Multihead(nn.Module):
    """PyTorch's own layer."""

    def __init__(self, **settings: bool) -> None:
        super().__init__()
        self.layer, self.settings = nn.MultiheadAttention(WIDTH, HEADS, batch_first=True), settings

    def forward(self, x: torch.Tensor, there: torch.Tensor) -> torch.Tensor:
        mask = nn.Transformer.generate_square_subsequent_mask(x.size(1), device=x.device)
        found: torch.Tensor = self.layer(x, x, x, attn_mask=mask, **self.settings)[0]
        return found


class Encoder(nn.Module):
    """PyTorch's encoder, which looks at its mask."""

    def __init__(self) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(WIDTH, HEADS, 16, 0.0, batch_first=True)
        self.layers = nn.TransformerEncoder(layer, 1)

    def forward(self, x: torch.Tensor, there: torch.Tensor) -> torch.Tensor:
        mask = nn.Transformer.generate_square_subsequent_mask(x.size(1), device=x.device)
        found: torch.Tensor = self.layers(x, mask=mask)
        return found


class Stacked(nn.Module):
    """Queries, keys and values by heads as three parts of one tensor, as in the example."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = gpt2.Attention(WIDTH, HEADS, 0.0)

    def forward(self, x: torch.Tensor, there: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.layer(x)
        return found


MODELS: dict[str, Callable[[], nn.Module]] = {
    "lower triangle": lambda: Attention(_lower_triangle),
    "flags of later": lambda: Attention(_flags_of_later),
    "added": lambda: Attention(_added),
    "chosen": lambda: Attention(_chosen),
    "hidden by the batch": lambda: Attention(_hidden_by_the_batch),
    "merged": lambda: Attention(_merged),
    "causal function": lambda: Attention(_function(is_causal=True)),
    "function of flags": lambda: Attention(_function_of_flags),
    "function of numbers": lambda: Attention(_function_of_numbers),
    "fewer keys": lambda: Attention(_function(is_causal=True, enable_gqa=True), key_heads=1),
    "layer": lambda: Multihead(),
    "layer without weights": lambda: Multihead(need_weights=False, is_causal=True),
    "encoder": lambda: Encoder(),
    "stacked": lambda: Stacked(),
}


_HIDDEN_ROWS = ("function of flags", "hidden by the batch")
"""With a sample of which nothing is there."""


def _step(model: nn.Module, x: torch.Tensor, there: torch.Tensor) -> torch.Tensor:
    loss = model(x, there).square().sum()
    loss.backward()
    with torch.no_grad():
        for parameter in model.parameters():
            assert parameter.grad is not None
            parameter.sub_(parameter.grad, alpha=0.05)
            parameter.grad = None
    return loss.detach()


@pytest.mark.parametrize("name", MODELS)
def test_one_kernel_with_eagers_numbers(name: str) -> None:
    torch.manual_seed(1)
    model, x = MODELS[name](), torch.randn(BATCH, LENGTH, WIDTH)
    there = torch.tensor([[1, 1, 1, 1, 0, 0], [0] * 6]) if name in _HIDDEN_ROWS else _there()
    eager = copy.deepcopy(model)
    expected = [float(_step(eager, x, there)) for _ in range(3)]

    move_to_device(model)
    inputs = [DeviceTensor(x), DeviceTensor(there)]
    traced = trace(lambda: _step(model, *inputs), inputs, model_state(model), [model])
    module = import_step(traced.graph, mode="train", seed=0)
    run_pipeline(module, verify=True)
    kernels = match_kernels(module).kernels
    families = Counter(kernel.family for kernel in kernels)
    assert families["attention"] == 1, families
    assert families["fully_connected"] == (2 if name == "encoder" else 0)
    assert not families["matmul"]
    assert not families["data_movement"]

    interface, function = step_interface(module), jax.jit(step_function(module))
    values = tuple(
        np.asarray(0, np.int64) if s.name == GLOBAL_STEP else to_array(traced.state[s.name].to_host())
        for s in interface.state
    )
    found = []
    for _ in expected:
        values, (loss,) = function(values, (to_array(x), to_array(there)))
        found.append(float(loss))
    np.testing.assert_allclose(found, expected, rtol=1e-5)


def _there() -> torch.Tensor:
    return torch.tensor([[1, 1, 1, 1, 0, 0], [1, 1, 1, 1, 1, 1]])
