"""Operations of the original's intermediate code that programs call, written with those of torch."""

from __future__ import annotations

import torch


def FusedTopK(input: torch.Tensor, k: int, dimension: int = -1) -> torch.Tensor:  # noqa: A002, N802 - the original's names
    """Return the k largest values with their indices.

    Args:
        input: Values [..., n].
        k: Number of values.
        dimension: Dimension of n, which must be the last one.

    Returns:
        [..., k, 2] of float32: value and index, the largest first. Indices are exact below 2**24.

    Raises:
        ValueError: The dimension is not the last one.
    """
    if dimension not in (-1, input.dim() - 1):
        raise ValueError(f"dimension is {dimension}, expected the last one, {input.dim() - 1}")
    values, indices = torch.topk(input.float(), k, dim=-1)
    return torch.stack((values, indices.float()), dim=-1)


def FusedTopP(input: torch.Tensor, p: torch.Tensor, u: torch.Tensor, k: torch.Tensor) -> torch.Tensor:  # noqa: A002, N802 - as above
    """Draw one of the most probable values (nucleus sampling).

    The first values whose probabilities add up to `p`, and at most `k`, are candidates; each is drawn with
    its probability among them.

    Args:
        input: What `FusedTopK` returned for probabilities, [batch, n, 2].
        p: Sum of the probabilities of the candidates, [batch, 1].
        u: Uniform random numbers in [0, 1), [batch, 1] or [batch].
        k: Number of candidates at most, [batch, 1].

    Returns:
        The index of the drawn value, [batch, 1], of int32.
    """
    probabilities, indices = input[..., 0], input[..., 1]
    total = torch.cumsum(probabilities, dim=-1)
    place = torch.arange(probabilities.size(-1), device=input.device)
    # A value is a candidate while those before it have not reached p; the first one always is.
    candidate = ((total - probabilities) < p) & (place < k)
    kept = torch.where(candidate, probabilities, torch.zeros_like(probabilities))
    bound = torch.cumsum(kept, dim=-1)
    threshold = u.reshape(-1, 1).to(kept.dtype) * bound[..., -1:]
    drawn = (bound <= threshold).sum(dim=-1, keepdim=True).clamp(max=probabilities.size(-1) - 1)
    return torch.gather(indices, -1, drawn.to(torch.int64)).to(torch.int32)
