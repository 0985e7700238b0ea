"""The parts of a batch: for each micro-batch, for each wafer, and for MemoryX."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from cs_toolkit.layered_step import Schedule, Traffic


def micro_batches(
    schedule: Schedule, inputs: Sequence[np.ndarray], whole: Sequence[np.ndarray] | None = None
) -> list[dict[int, Any]]:
    """Split a batch into the values of each micro-batch, by number.

    Args:
        schedule: Schedule of the step.
        inputs: Tensors of a batch, or one wafer's share: its samples of each micro-batch in sequence.
        whole: The tensors of the whole batch that the step needs as well; taken from `inputs` if None.
    """
    micro = schedule.micro
    complete = [inputs[position] for position in micro.whole.values()] if whole is None else whole
    same = dict(zip(micro.whole, complete, strict=True))
    found: list[dict[int, Any]] = []
    for index in range(micro.count):
        batch: dict[int, Any] = dict(same)
        for number, array in zip(schedule.inputs, inputs, strict=True):
            size = len(array) // micro.count if number in micro.parts else 0
            batch[number] = array[index * size : (index + 1) * size] if size else array
        if micro.number is not None:
            batch[micro.number] = np.asarray(index, np.int32)
        found.append(batch)
    return found


def for_memory(schedule: Schedule, traffic: Traffic, inputs: Sequence[np.ndarray]) -> list[np.ndarray]:
    """Return the batch tensors that go to MemoryX, in the order of the traffic."""
    known = {number: inputs[position] for number, position in schedule.micro.whole.items()}
    known.update(zip(schedule.inputs, inputs, strict=True))
    return [known[number] for number in traffic.inputs]


def share(array: np.ndarray, parts: int, count: int, rank: int) -> np.ndarray:
    """Return the samples of one wafer: its share of each micro-batch, in sequence.

    Args:
        array: A tensor of the whole batch.
        parts: Number of micro-batches.
        count: Number of wafers.
        rank: Rank of the wafer, from 0.
    """
    size = len(array) // (parts * count)
    return array.reshape(parts, count, size, *array.shape[1:])[:, rank].reshape(-1, *array.shape[1:])
