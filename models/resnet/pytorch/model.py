"""ResNet of basic blocks (He et al. 2016): ResNet-18 with two of them in each of four stages."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn import functional

from cstorch.metrics import AccuracyMetric


class Block(nn.Module):
    """Two convolutions and a shortcut, which is a projection if the shape changes."""

    def __init__(self, channels: int, filters: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels, filters, 3, stride, 1, bias=False)
        self.norm1 = nn.BatchNorm2d(filters)
        self.conv2 = nn.Conv2d(filters, filters, 3, 1, 1, bias=False)
        self.norm2 = nn.BatchNorm2d(filters)
        self.shortcut = nn.Sequential()
        if stride != 1 or channels != filters:
            self.shortcut = nn.Sequential(
                nn.Conv2d(channels, filters, 1, stride, bias=False), nn.BatchNorm2d(filters)
            )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Map [batch, channels, height, width] to [batch, filters, height / stride, width / stride]."""
        hidden = functional.relu(self.norm1(self.conv1(x)))
        return functional.relu(self.norm2(self.conv2(hidden)) + self.shortcut(x))


class ResNet(nn.Module):
    """Computes the loss of a batch of images and, in evaluation, the accuracy.

    Args:
        params: The parameters, as in the parameter file.
    """

    def __init__(self, params: dict[str, Any]) -> None:
        super().__init__()
        settings = params["model"]
        channels = settings["filters"][0]
        size, stride = settings["stem_kernel_size"], settings["stem_strides"]
        self.stem = nn.Sequential(
            nn.Conv2d(settings["num_channels"], channels, size, stride, size // 2, bias=False),
            nn.BatchNorm2d(channels),
            nn.ReLU(),
            nn.MaxPool2d(3, 2, 1) if settings["stem_max_pool"] else nn.Identity(),
        )
        blocks: list[nn.Module] = []
        for stage, (filters, count) in enumerate(zip(settings["filters"], settings["blocks"], strict=True)):
            for block in range(count):
                blocks.append(Block(channels, filters, stride=2 if stage and not block else 1))
                channels = filters
        self.blocks = nn.Sequential(*blocks)
        self.logits = nn.Linear(channels, settings["num_classes"])
        self.loss = nn.CrossEntropyLoss(label_smoothing=settings["label_smoothing"])
        self.accuracy = AccuracyMetric("eval/accuracy")

    def forward(self, batch: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
        """Return the mean loss of (images [batch, channels, size, size], classes [batch])."""
        images, classes = batch
        logits = self.logits(self.blocks(self.stem(images)).mean((2, 3)))
        if not self.training:
            self.accuracy(labels=classes.clone(), predictions=logits.argmax(-1).int())
        return self.loss(logits, classes)
