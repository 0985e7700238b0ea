"""GPT-2 (Radford et al. 2019): a causal language model with one table for embedding and output."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import nn
from torch.nn import functional


class Attention(nn.Module):
    """Causal multi-head attention."""

    def __init__(self, hidden_size: int, num_heads: int, dropout_rate: float) -> None:
        super().__init__()
        self.num_heads, self.dropout_rate = num_heads, dropout_rate
        self.query_key_value = nn.Linear(hidden_size, 3 * hidden_size)
        self.output = nn.Linear(hidden_size, hidden_size)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Map [batch, length, hidden] to the same shape."""
        batch, length, hidden = x.shape
        heads = self.query_key_value(x).view(batch, length, 3, self.num_heads, hidden // self.num_heads)
        query, key, value = heads.permute(2, 0, 3, 1, 4).unbind()
        dropout = self.dropout_rate if self.training else 0.0
        found = functional.scaled_dot_product_attention(query, key, value, dropout_p=dropout, is_causal=True)
        return self.output(found.transpose(1, 2).reshape(batch, length, hidden))


class Block(nn.Module):
    """Attention and two linear layers, each after a normalization and with a residual sum."""

    def __init__(self, settings: dict[str, Any]) -> None:
        super().__init__()
        hidden, epsilon = settings["hidden_size"], settings["layer_norm_epsilon"]
        self.norm1 = nn.LayerNorm(hidden, epsilon)
        self.attention = Attention(hidden, settings["num_heads"], settings["dropout_rate"])
        self.norm2 = nn.LayerNorm(hidden, epsilon)
        self.expand = nn.Linear(hidden, settings["filter_size"])
        self.contract = nn.Linear(settings["filter_size"], hidden)
        self.dropout = nn.Dropout(settings["dropout_rate"])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Map [batch, length, hidden] to the same shape."""
        x = x + self.dropout(self.attention(self.norm1(x)))
        hidden = functional.gelu(self.expand(self.norm2(x)), approximate="tanh")
        return x + self.dropout(self.contract(hidden))


class GPT2(nn.Module):
    """Computes the logits of the token that follows each position.

    Initial kernels before a residual sum are divided by the square root of the number of sums (section 2.3).

    Args:
        settings: The group `model` of the parameters.
    """

    def __init__(self, settings: dict[str, Any]) -> None:
        super().__init__()
        hidden, layers = settings["hidden_size"], settings["num_hidden_layers"]
        self.tokens = nn.Embedding(settings["vocab_size"], hidden)
        self.positions = nn.Embedding(settings["max_position_embeddings"], hidden)
        self.dropout = nn.Dropout(settings["dropout_rate"])
        self.blocks = nn.ModuleList(Block(settings) for _ in range(layers))
        self.norm = nn.LayerNorm(hidden, settings["layer_norm_epsilon"])
        self.logits = nn.Linear(hidden, settings["vocab_size"], bias=False)
        self.logits.weight = self.tokens.weight
        deviation = settings["initializer_range"]
        for name, parameter in self.named_parameters():
            if name.endswith("bias"):
                nn.init.zeros_(parameter)
            elif parameter.ndim > 1:
                summed = name.endswith(("output.weight", "contract.weight"))
                nn.init.normal_(parameter, std=deviation / math.sqrt(2 * layers) if summed else deviation)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        """Return the logits [batch, length, vocabulary] of ids [batch, length]."""
        places = torch.arange(ids.shape[1], device=ids.device)
        x = self.dropout(self.tokens(ids) + self.positions(places))
        for block in self.blocks:
            x = block(x)
        return self.logits(self.norm(x))
