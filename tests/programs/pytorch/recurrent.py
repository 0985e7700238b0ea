"""Recurrences of PyTorch programs."""

from __future__ import annotations

import torch
from torch import nn


class RecurrentLayers(nn.Module):
    """Recurrent layers of `torch.nn`, and the mean square of their outputs."""

    def __init__(self, kind: type[nn.RNNBase], width: int, layers: int) -> None:
        super().__init__()
        self.rnn = kind(width, width, layers, batch_first=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.rnn(x)[0].square().mean()


def mix_time(
    keys: torch.Tensor, values: torch.Tensor, decay: torch.Tensor, first: torch.Tensor
) -> torch.Tensor:
    """Return the decaying weighted means of RWKV's time mixing, written step by step into a tensor.

    Args:
        keys: `[batch, time, width]`; the logarithms of the weights.
        values: The same shape.
        decay: `[width]`, subtracted from earlier weights in every step.
        first: `[width]`, added to the weight of the current step.
    """
    above, below = torch.zeros_like(keys[:, 0]), torch.zeros_like(keys[:, 0])
    largest = below - 1e38
    out = torch.zeros_like(keys)
    for t in range(keys.shape[1]):
        key, value = keys[:, t], values[:, t]
        now = torch.maximum(largest, key + first)
        old, new = torch.exp(largest - now), torch.exp(key + first - now)
        out[:, t] = (old * above + new * value) / (old * below + new)
        now = torch.maximum(largest - decay, key)
        old, new = torch.exp(largest - decay - now), torch.exp(key - now)
        above, below, largest = old * above + new * value, old * below + new, now
    return out
