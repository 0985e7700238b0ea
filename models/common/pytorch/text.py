"""Real text that comes with every Python: the sources of its standard library, as bytes."""

from __future__ import annotations

import sysconfig
from functools import cache
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from models.common.data import DataError

VOCABULARY = 256
"""Tokens are bytes."""
EVAL_FRACTION = 0.05


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
