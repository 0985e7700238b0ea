"""Layers whose operations PyTorch computes in one piece that says nothing of its gradient."""

from __future__ import annotations

import torch
from torch.nn import functional
from torch.nn.modules.batchnorm import _BatchNorm

_of_momentum = _BatchNorm.forward


def rrelu(
    input: torch.Tensor,  # noqa: A002 - as torch.nn.functional calls it
    lower: float = 1.0 / 8,
    upper: float = 1.0 / 3,
    training: bool = False,
    inplace: bool = False,
) -> torch.Tensor:
    """`torch.nn.functional.rrelu`: a slope drawn for each element, in evaluation their mean."""
    slope = torch.empty_like(input).uniform_(lower, upper) if training else (lower + upper) / 2
    found = torch.where(input >= 0, input, input * slope)
    return input.copy_(found) if inplace else found


def _weight_norm(v: torch.Tensor, g: torch.Tensor, dim: int = 0) -> torch.Tensor:
    """`torch._weight_norm`: v with the norms g along an axis."""
    return v * (g / torch.norm_except_dim(v, 2, dim))


def renorm(
    input: torch.Tensor,  # noqa: A002
    p: float,
    dim: int,
    maxnorm: float,
) -> torch.Tensor:
    """`torch.renorm`, whose gradient PyTorch computes in float64."""
    axes = [axis for axis in range(input.dim()) if axis != dim % input.dim()]
    norm = torch.linalg.vector_norm(input, p, axes, keepdim=True)
    return input * torch.where(norm > maxnorm, maxnorm / (norm + 1e-7), 1.0)


def embedding_bag(
    input: torch.Tensor,  # noqa: A002
    weight: torch.Tensor,
    offsets: torch.Tensor | None = None,
    max_norm: float | None = None,
    norm_type: float = 2,
    scale_grad_by_freq: bool = False,
    mode: str = "mean",
    sparse: bool = False,
    per_sample_weights: torch.Tensor | None = None,
    include_last_offset: bool = False,
    padding_idx: int | None = None,
) -> torch.Tensor:
    """`torch.nn.functional.embedding_bag`.

    Args:
        input: ids `[bags, size]`, or `[ids]` with the offsets at which bags begin.
        weight: rows `[rows, width]`.
        offsets: rising, the first one 0; the bags may have any size.
        max_norm: rows with a larger norm are scaled down to it in the table.
        norm_type: of `max_norm`.
        scale_grad_by_freq: whether gradients are divided by how often a row is looked up.
        mode: "sum", "mean" or "max".
        sparse: without meaning, as gradients are dense.
        per_sample_weights: factors of the shape of `input`, with "sum".
        include_last_offset: the last offset is the end of the last bag.
        padding_idx: a row that counts as not there.
    """
    padding = None if padding_idx is None else padding_idx % weight.size(0)
    there = (
        torch.ones_like(input, dtype=weight.dtype) if padding is None else (input != padding).to(weight.dtype)
    )
    rows = functional.embedding(input, weight, padding, max_norm, norm_type, scale_grad_by_freq)
    factors = there if per_sample_weights is None else there * per_sample_weights
    if offsets is None:
        return _of_equal_bags(rows, there, factors, mode)
    count = offsets.size(0) - int(include_last_offset)
    places = torch.arange(input.size(0), device=input.device)
    bags = (places[:, None] >= offsets[None, :count]).sum(1) - 1
    if mode == "max":
        hidden = torch.where(there[:, None] > 0, rows, -torch.inf)
        table = rows.new_full((count, rows.size(1)), -torch.inf).scatter_reduce(
            0, bags[:, None].expand_as(rows), hidden, "amax"
        )
        return torch.where(table.isfinite(), table, 0.0)
    total = rows.new_zeros(count, rows.size(1)).index_add(0, bags, rows * factors[:, None])
    if mode == "sum":
        return total
    return total / rows.new_zeros(count).index_add(0, bags, there).clamp(min=1)[:, None]


def _of_equal_bags(rows: torch.Tensor, there: torch.Tensor, factors: torch.Tensor, mode: str) -> torch.Tensor:
    if mode == "max":
        largest = torch.where(there[..., None] > 0, rows, -torch.inf).amax(1)
        return torch.where(largest.isfinite(), largest, 0.0)
    total = (rows * factors[..., None]).sum(1)
    return total if mode == "sum" else total / there.sum(1, keepdim=True).clamp(min=1)


def forward(self: _BatchNorm, input: torch.Tensor) -> torch.Tensor:  # noqa: A002
    """`_BatchNorm.forward`: without a momentum the running moments are means over all batches so far.

    PyTorch reads the number of batches, of which only a step knows the value.
    """
    if self.momentum is not None or not self.training or self.running_mean is None:
        return _of_momentum(self, input)
    self._check_input_dim(input)
    self.num_batches_tracked.add_(1)
    with torch.no_grad():
        variance, mean = torch.var_mean(input, [axis for axis in range(input.dim()) if axis != 1])
        share = self.num_batches_tracked.to(mean.dtype).reciprocal()
        self.running_mean.lerp_(mean, share)
        self.running_var.lerp_(variance, share)
    return functional.batch_norm(input, None, None, self.weight, self.bias, True, 0.0, self.eps)
