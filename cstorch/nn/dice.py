"""Loss of a segmentation: overlap and cross entropy together."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn import functional


class DiceCELoss(nn.Module):
    """Mean cross entropy plus one minus the mean Dice coefficient of the classes.

    The Dice coefficient of a class is `2 sum(p y) / (sum(p) + sum(y))` over all pixels of the batch, with the
    softmax p of the logits and the labels y as 0 and 1 (Milletari et al., V-Net, 2016, with sums in place of
    squares; 1e-6 is added to both parts of the fraction).

    Args:
        num_classes: number of classes.
        input_shape: taken for programs that give it.
        weight_dice: factor of the Dice part.
        weight_ce: factor of the cross entropy.

    Raises:
        ValueError: there are fewer than two classes.
    """

    def __init__(
        self, num_classes: int, input_shape: Any = None, weight_dice: float = 1.0, weight_ce: float = 1.0
    ) -> None:
        super().__init__()
        if num_classes < 2:
            raise ValueError(f"got num_classes={num_classes}, expected 2 or more")
        self.num_classes, self.input_shape = num_classes, input_shape
        self.weight_dice, self.weight_ce = weight_dice, weight_ce

    def forward(self, logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """The loss.

        Args:
            logits: [batch, classes, ...].
            labels: classes, [batch, ...] or [batch, 1, ...].
        """
        if labels.dim() == logits.dim():
            labels = labels.squeeze(1)
        labels = labels.long()
        ce = functional.cross_entropy(logits, labels)
        p = torch.softmax(logits, 1).transpose(0, 1).reshape(self.num_classes, -1)
        y = (labels.reshape(1, -1) == torch.arange(self.num_classes).reshape(-1, 1)).to(p.dtype)
        dice = (2 * (p * y).sum(1) + 1e-6) / (p.sum(1) + y.sum(1) + 1e-6)
        return self.weight_ce * ce + self.weight_dice * (1 - dice.mean())
