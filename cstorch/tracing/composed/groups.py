"""Rows in groups whose sizes depend on values, as tokens by their experts: products and counts.

A product of such groups is one dense product: rows lie next to each other once for every group, zero where
they belong to another one. So sizes follow from shapes, at the price of `groups` times the work.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch


def grouped_mm(
    a: torch.Tensor,
    b: torch.Tensor,
    offs: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
    out_dtype: torch.dtype | None = None,
) -> torch.Tensor:
    """`torch.nn.functional.grouped_mm`: one product of matrices for every group.

    Args:
        a: `[rows, K]` with groups of rows, `[M, K]` with groups along K, or `[groups, M, K]`.
        b: `[groups, K, N]`; `[K, N]` with groups along K, or, where `a` has three dimensions, along N.
        offs: the ends of the groups, rising; what lies behind the last one counts as zero. None where both
            have three dimensions.
        bias: added to the result.
        out_dtype: of the result.

    Returns:
        `[rows, N]`, `[groups, M, N]` or `[M, N]`.
    """
    if offs is None:
        found = torch.bmm(a, b)
    elif a.dim() == 2 and b.dim() == 3:
        found = _spread(a, _members(offs, a.size(0))) @ b.reshape(-1, b.size(2))
    elif a.dim() == 3:
        rows = _spread(b.transpose(0, 1), _members(offs, b.size(1)))
        found = (rows @ a.transpose(1, 2).reshape(-1, a.size(1))).transpose(0, 1)
    else:
        columns = _members(offs, a.size(1)).transpose(0, 1).to(a.dtype)
        found = (a * columns[:, None, :]) @ b
    found = found if bias is None else found + bias
    return found if out_dtype is None else found.to(out_dtype)


def _members(offs: torch.Tensor, rows: int) -> torch.Tensor:
    """Truth `[rows, groups]` where a row belongs to a group."""
    places = torch.arange(rows, device=offs.device, dtype=offs.dtype)[:, None]
    begins = torch.cat([torch.zeros_like(offs[:1]), offs[:-1]])
    return torch.logical_and(places >= begins, places < offs)


def _spread(rows: torch.Tensor, members: torch.Tensor) -> torch.Tensor:
    """`[rows, groups * K]` of `[rows, K]`: the row where its group is, zeros elsewhere."""
    return (rows[:, None, :] * members.to(rows.dtype)[:, :, None]).reshape(rows.size(0), -1)


def _fallback_backward(
    x: torch.Tensor, weight: torch.Tensor, offs: torch.Tensor, grad: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    return grouped_mm(grad, weight.transpose(1, 2), offs), grouped_mm(x.transpose(0, 1), grad, offs)


def histc(x: torch.Tensor, bins: int = 100, min: float = 0, max: float = 0) -> torch.Tensor:  # noqa: A002
    """`torch.histc`: how many elements lie in each of equal bins; in those of the extremes if both are 0."""
    x = x.reshape(-1)
    low: Any = min
    high: Any = max
    if min == max == 0:
        low, high = x.amin(), x.amax()
        equal = (low == high).to(x.dtype)
        low, high = low - equal, high + equal
    elif min == max:
        low, high = min - 1, max + 1
    places = ((x.to(torch.float32) - low) * bins / (high - low)).floor()
    places = torch.where(x == high, bins - 1, places)
    return (places[:, None] == torch.arange(bins, device=x.device)).sum(0).to(x.dtype)


DECOMPOSED: Mapping[str, Callable[..., Any]] = {
    "aten::_grouped_mm": grouped_mm,
    "aten::histc": histc,
    "transformers::grouped_mm_fallback": grouped_mm,
    "transformers::grouped_mm_fallback_backward": _fallback_backward,
}
"""What operations are composed of, by the names of their schemas."""
