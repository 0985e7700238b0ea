"""Functions of the original for models with sparse activations."""

from __future__ import annotations

import torch


def one_hot(array: torch.Tensor, num_classes: int) -> torch.Tensor:
    """Return 1 at the index of each element and 0 elsewhere, of int64.

    Args:
        array: Indices [...].
        num_classes: Size of the new last dimension.
    """
    classes = torch.arange(num_classes, device=array.device)
    return (array.unsqueeze(-1) == classes).to(torch.int64)


def sparse_matmul(
    input_values: torch.Tensor, input_indices: torch.Tensor, weight: torch.Tensor
) -> torch.Tensor:
    """Multiply each value with the part of a weight that its index chooses, as experts of a mixture do.

    Args:
        input_values: [..., M, C, N].
        input_indices: [..., M, C], below F.
        weight: [K, F, N].

    Returns:
        [..., M, C, K].
    """
    chosen = one_hot(input_indices, weight.size(1)).to(input_values.dtype)
    # One product over (F, N) with zeros at the other parts, instead of a weight for each value.
    spread = (chosen.unsqueeze(-1) * input_values.unsqueeze(-2)).flatten(-2)
    return spread @ weight.flatten(1).t()


def sparse_act_matmul(
    input_value: torch.Tensor,
    input_mask: torch.Tensor,
    weight: torch.Tensor,
    dense_capacity: int | None = None,
) -> torch.Tensor:
    """Multiply the rows of an input that a mask keeps with a weight; the others become 0.

    Args:
        input_value: [..., M, N].
        input_mask: 1 for rows that are kept, else 0, [..., M].
        weight: [K, N].
        dense_capacity: Number of rows that are kept at most, for the original's compiler; without effect.

    Returns:
        [..., M, K].
    """
    kept = input_value * input_mask.to(input_value.dtype).unsqueeze(-1)
    return kept @ weight.t()
