"""FC-MNIST: 784 inputs, hidden layers of ReLU with dropout, 10 classes."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import torch
from torch import nn

from cstorch.metrics import AccuracyMetric

NUM_CLASSES = 10


class FcMnist(nn.Module):
    """Computes the loss of a batch and, in evaluation, the accuracy.

    Args:
        params: The parameters, as in the parameter file.
    """

    def __init__(self, params: dict[str, Any]) -> None:
        super().__init__()
        settings = params["model"]
        layers: list[nn.Module] = []
        for inputs, outputs in pairwise((settings["input_size"], *settings["hidden_sizes"])):
            layers += [nn.Linear(inputs, outputs), nn.ReLU(), nn.Dropout(settings["dropout"])]
        self.layers = nn.Sequential(*layers, nn.Linear(settings["hidden_sizes"][-1], NUM_CLASSES))
        self.loss = nn.CrossEntropyLoss()
        self.accuracy = AccuracyMetric("eval/accuracy")

    def forward(self, batch: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
        """Return the mean loss of (pixels [batch, 784], labels [batch])."""
        pixels, labels = batch
        logits = self.layers(pixels)
        if not self.training:
            self.accuracy(labels=labels.clone(), predictions=logits.argmax(-1).int())
        return self.loss(logits, labels)
