"""The data of the PyTorch examples: text that comes with Python, and batches of a worker's records."""

from __future__ import annotations

import sysconfig
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from cstorch.utils.data import DistributedSampler
from models.common.data import DataError

VOCABULARY = 256  # tokens are bytes
EVAL_FRACTION = 0.05


def batches(
    records: torch.utils.data.Dataset[Any],
    settings: Mapping[str, Any],
    *,
    training: bool,
    collate_fn: Callable[[list[Any]], Any] | None = None,
) -> torch.utils.data.DataLoader[Any]:
    """Return full batches of this worker's records: shuffled each epoch for training, else in order.

    Args:
        records: The records of all workers; each worker reads its own batches.
        settings: An input group of the parameters.
        training: Shuffle the records.
        collate_fn: Makes a batch of a list of records.

    Raises:
        DataError: There are fewer records than a batch needs.
    """
    batch_size = settings["batch_size"]
    order = DistributedSampler(
        records,
        shuffle=training,
        seed=settings.get("shuffle_seed"),
        batch_size=batch_size,
        drop_last=True,
    )
    if not len(order):
        raise DataError(
            f"batch_size is {batch_size}, but this task's share of {len(records)} records is smaller; use a "
            "smaller batch_size or fewer workers"
        )
    return torch.utils.data.DataLoader(
        records, batch_size, sampler=order, drop_last=True, collate_fn=collate_fn
    )


@cache
def library_bytes() -> NDArray[np.uint8]:
    """Return the modules of the standard library as one array, sorted by name."""
    files = sorted(Path(sysconfig.get_path("stdlib")).glob("*.py"))
    return np.frombuffer(b"".join(file.read_bytes() for file in files), np.uint8)


class Windows(torch.utils.data.Dataset[torch.Tensor]):
    """Consecutive windows of the text.

    Args:
        split: "train", or "eval" for the last part of the text.
        length: Bytes of a window.
        stride: Bytes between the starts of two windows; `length` if None.
        num_examples: Number of windows, from the first one; None for all.

    Raises:
        DataError: The text is shorter than a window.
    """

    def __init__(
        self, split: str, length: int, stride: int | None = None, num_examples: int | None = None
    ) -> None:
        text = library_bytes()
        cut = round(len(text) * (1 - EVAL_FRACTION))
        self._text = text[cut:] if split == "eval" else text[:cut]
        self._length, self._stride = length, stride or length
        available = 1 + (len(self._text) - length) // self._stride
        if available < 1:
            raise DataError(f"max_sequence_length is {length}, the text of '{split}' has {len(self._text)}")
        self._count = available if num_examples is None else min(num_examples, available)

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: int) -> torch.Tensor:
        """Return the bytes of a window, int64 [length]."""
        begin = index * self._stride
        return torch.from_numpy(self._text[begin : begin + self._length].astype(np.int64))
