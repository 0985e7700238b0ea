"""BERT (Devlin et al. 2019): an encoder that predicts masked tokens."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn import functional

from cstorch.metrics import AccuracyMetric

IGNORED = -100
"""Label of positions that are not masked."""


class Bert(nn.Module):
    """Computes the loss of a batch of masked texts and, in evaluation, the accuracy of masked tokens.

    Args:
        params: The parameters, as in the parameter file.
    """

    def __init__(self, params: dict[str, Any]) -> None:
        super().__init__()
        settings = params["model"]
        hidden, epsilon = settings["hidden_size"], settings["layer_norm_epsilon"]
        self.tokens = nn.Embedding(settings["vocab_size"], hidden)
        self.positions = nn.Embedding(settings["max_position_embeddings"], hidden)
        self.norm = nn.LayerNorm(hidden, epsilon)
        self.dropout = nn.Dropout(settings["dropout_rate"])
        layer = nn.TransformerEncoderLayer(
            hidden,
            settings["num_heads"],
            settings["filter_size"],
            settings["dropout_rate"],
            activation="gelu",
            layer_norm_eps=epsilon,
            batch_first=True,
        )
        self.encoder = nn.TransformerEncoder(layer, settings["num_hidden_layers"], enable_nested_tensor=False)
        self.transform = nn.Linear(hidden, hidden)
        self.head_norm = nn.LayerNorm(hidden, epsilon)
        self.logits = nn.Linear(hidden, settings["vocab_size"])
        self.apply(lambda module: _initialize(module, settings["initializer_range"]))
        self.logits.weight = self.tokens.weight
        self.accuracy = AccuracyMetric("eval/accuracy_of_masked")

    def forward(self, batch: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
        """Return the mean loss of (ids [batch, length], labels [batch, length]) over masked positions."""
        ids, labels = batch
        logits = self._logits(ids)
        if not self.training:
            asked = (labels != IGNORED).float()
            self.accuracy(labels=labels.clamp(min=0), predictions=logits.argmax(-1).int(), weights=asked)
        return functional.cross_entropy(logits.flatten(0, 1), labels.flatten(), ignore_index=IGNORED)

    def _logits(self, ids: torch.Tensor) -> torch.Tensor:
        places = torch.arange(ids.shape[1], device=ids.device)
        x = self.dropout(self.norm(self.tokens(ids) + self.positions(places)))
        x = self.encoder(x)
        return self.logits(self.head_norm(functional.gelu(self.transform(x))))


def _initialize(module: nn.Module, deviation: float) -> None:
    if isinstance(module, nn.Linear | nn.Embedding):
        nn.init.normal_(module.weight, std=deviation)
    if isinstance(module, nn.Linear):
        nn.init.zeros_(module.bias)
