"""Packed sequences, whose lengths are numbers of the program: rows that are taken from their places."""

from __future__ import annotations

import torch


def _pack_padded_sequence(
    input: torch.Tensor,  # noqa: A002 - as PyTorch calls it
    lengths: torch.Tensor,
    batch_first: bool,
) -> tuple[torch.Tensor, torch.Tensor]:
    """What `torch.nn.utils.rnn.pack_padded_sequence` calls.

    Returns:
        The rows of all sequences, step by step, and on this CPU how many of them each step has.

    Raises:
        RuntimeError: the lengths do not fall.
        TensorReadError: only a step knows the lengths.
    """
    numbers = lengths.tolist()
    if numbers != sorted(numbers, reverse=True) or not numbers or numbers[-1] < 1:
        raise RuntimeError(
            f"the lengths of a packed sequence are {numbers}, expected numbers from 1 on that do not rise; "
            "pass enforce_sorted=False to pack_padded_sequence to have them sorted"
        )
    steps = input.transpose(0, 1) if batch_first else input
    sizes = [sum(length > step for length in numbers) for step in range(numbers[0])]
    rows = [step * steps.size(1) + place for step, size in enumerate(sizes) for place in range(size)]
    return steps.reshape(-1, *steps.shape[2:]).index_select(0, torch.tensor(rows)), torch.tensor(sizes)


def _pad_packed_sequence(
    data: torch.Tensor, batch_sizes: torch.Tensor, batch_first: bool, padding_value: float, total_length: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """What `torch.nn.utils.rnn.pad_packed_sequence` calls.

    Returns:
        The sequences with padding behind them, and on this CPU their lengths.
    """
    sizes = batch_sizes.tolist()
    begins = [sum(sizes[:step]) for step in range(len(sizes))]
    rows = [
        begins[step] + place if step < len(sizes) and place < sizes[step] else sum(sizes)
        for step in range(max(total_length, len(sizes)))
        for place in range(sizes[0])
    ]
    longer = torch.cat([data, torch.full_like(data[:1], padding_value)])
    steps = longer.index_select(0, torch.tensor(rows)).reshape(-1, sizes[0], *data.shape[1:])
    lengths = torch.tensor([sum(size > place for size in sizes) for place in range(sizes[0])])
    return (steps.transpose(0, 1) if batch_first else steps), lengths


REPLACED = (_pack_padded_sequence, _pad_packed_sequence)
