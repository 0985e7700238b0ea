"""Language models of PyTorch programs."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from models.gpt2.pytorch.model import GPT2

from .attention import CausalSelfAttention, RotaryAttention


class GPT2Loss(nn.Module):
    """The loss of the GPT-2 example; the networks of the other examples return theirs."""

    def __init__(self, params: dict[str, Any]) -> None:
        super().__init__()
        self.network = GPT2(params["model"])

    def forward(self, batch: Any) -> torch.Tensor:
        ids, following = batch
        return functional.cross_entropy(self.network(ids).flatten(0, 1), following.flatten())


class TinyGPT(nn.Module):
    """One block of a GPT between tied embeddings; returns logits `[batch * length, vocabulary]`."""

    def __init__(self, vocabulary: int = 64, length: int = 16, width: int = 32) -> None:
        super().__init__()
        self.wte, self.wpe = nn.Embedding(vocabulary, width), nn.Embedding(length, width)
        self.ln1, self.attn, self.ln2 = (
            nn.LayerNorm(width),
            CausalSelfAttention(width, 2),
            nn.LayerNorm(width),
        )
        self.fc1, self.fc2 = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.lnf, self.head = nn.LayerNorm(width), nn.Linear(width, vocabulary, bias=False)
        self.head.weight = self.wte.weight

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.wte(ids) + self.wpe(torch.arange(ids.shape[1], device=ids.device))
        x = x + self.attn(self.ln1(x))
        x = x + self.fc2(functional.gelu(self.fc1(self.ln2(x))))
        return self.head(self.lnf(x)).flatten(0, 1)


class RMSNorm(nn.Module):
    def __init__(self, width: int, eps: float = 1e-6) -> None:
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(width))

    def _norm(self, x: torch.Tensor) -> torch.Tensor:
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self._norm(x.float()).type_as(x) * self.weight


class RotaryBlock(nn.Module):
    """Rotary attention and a gated feed-forward layer, each after an RMS norm."""

    def __init__(self, width: int = 16, heads: int = 4, key_heads: int = 2) -> None:
        super().__init__()
        self.attention = RotaryAttention(width, heads, key_heads)
        self.n1, self.n2 = RMSNorm(width), RMSNorm(width)
        self.w1, self.w2, self.w3 = nn.Linear(width, 32), nn.Linear(32, width), nn.Linear(width, 32)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attention(self.n1(x))
        h = self.n2(x)
        out: torch.Tensor = x + self.w2(functional.silu(self.w1(h)) * self.w3(h))
        return out


class RotaryLanguageModel(nn.Module):
    """Tied weights, the loss inside the model, and optionally checkpointed blocks."""

    def __init__(self, vocabulary: int = 19, width: int = 16, *, use_checkpoint: bool = False) -> None:
        super().__init__()
        self.emb = nn.Embedding(vocabulary, width)
        self.blocks = nn.ModuleList(RotaryBlock(width) for _ in range(2))
        self.norm, self.out = RMSNorm(width), nn.Linear(width, vocabulary, bias=False)
        self.out.weight = self.emb.weight
        self.use_checkpoint = use_checkpoint

    def forward(self, ids: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        x = self.emb(ids)
        for i, block in enumerate(self.blocks):
            x = checkpoint(block, x, use_reentrant=i == 0) if self.use_checkpoint else block(x)
        logits = self.out(self.norm(x)).float()
        return functional.cross_entropy(logits.view(-1, logits.size(-1)), targets.view(-1), ignore_index=-100)
