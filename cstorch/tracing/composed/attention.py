"""Attention, as the operations that the attention kernel is found by."""

from __future__ import annotations

import math

import torch
from torch.nn import functional


def scaled_dot_product_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_mask: torch.Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> torch.Tensor:
    """`torch.nn.functional.scaled_dot_product_attention`: a query that sees no key gets zeros.

    Args:
        query: `[..., heads, L, E]`.
        key: `[..., heads, S, E]`; with `enable_gqa` of fewer heads, each for as many of the queries'.
        value: `[..., heads, S, Ev]`, likewise.
        attn_mask: broadcast to `[..., L, S]`; truth where a query sees a key, or numbers to add to scores.
        dropout_p: share of the probabilities that is dropped, in evaluation too.
        is_causal: a query sees no later keys; not together with a mask.
        scale: of the scores; 1 / sqrt(E) when None.
        enable_gqa: see `key`.

    Raises:
        ValueError: a mask is given and `is_causal` says another one.
    """
    if is_causal and attn_mask is not None:
        raise ValueError("attn_mask is given with is_causal=True, expected one of the two")
    if enable_gqa:
        repeats = query.size(-3) // key.size(-3)
        key, value = key.repeat_interleave(repeats, -3), value.repeat_interleave(repeats, -3)
    scores = query @ key.transpose(-2, -1) * (1 / math.sqrt(query.size(-1)) if scale is None else scale)
    shown = None
    if is_causal:
        seen = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).tril()
        scores = scores.masked_fill(seen.logical_not(), -math.inf)
    elif attn_mask is not None and attn_mask.dtype == torch.bool:
        shown = attn_mask
        scores = torch.where(shown, scores, torch.finfo(scores.dtype).min)
    elif attn_mask is not None:
        scores = scores + attn_mask
    probabilities = functional.softmax(scores, -1)
    if shown is not None:
        probabilities = torch.where(shown, probabilities, 0.0)
    if dropout_p:
        probabilities = functional.dropout(probabilities, dropout_p)
    return probabilities @ value
