"""The micro-batches of a batch: some samples at a time, on one wafer or on several that share each."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from cs_toolkit.schedule import Schedule
from cs_toolkit.traffic import Traffic

Arrays = Sequence[np.ndarray]


def micro_batches(schedule: Schedule, inputs: Arrays, whole: Arrays | None = None) -> list[dict[int, Any]]:
    """What comes with each micro-batch, by number.

    Args:
        schedule: Of the step.
        inputs: The tensors of a batch, or one wafer's share of each micro-batch, one after the other.
        whole: Those tensors of the whole batch that the step wants, too; from `inputs` when None.
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


def for_memory(schedule: Schedule, traffic: Traffic, inputs: Arrays) -> list[np.ndarray]:
    """Those tensors of a batch that go to MemoryX, in the order of the traffic."""
    known = {number: inputs[position] for number, position in schedule.micro.whole.items()}
    known.update(zip(schedule.inputs, inputs, strict=True))
    return [known[number] for number in traffic.inputs]


def share(array: np.ndarray, parts: int, count: int, rank: int) -> np.ndarray:
    """The samples of one wafer: its share of each micro-batch, one after the other.

    Args:
        array: Of the whole batch.
        parts: Micro-batches of it.
        count: Of wafers.
        rank: Of the wafer, from 0.
    """
    size = len(array) // (parts * count)
    return array.reshape(parts, count, size, *array.shape[1:])[:, rank].reshape(-1, *array.shape[1:])
