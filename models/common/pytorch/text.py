"""Real text that every Python has: the sources of its standard library, as bytes."""

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
    """The modules of the standard library one after the other, in the order of their names."""
    files = sorted(Path(sysconfig.get_path("stdlib")).glob("*.py"))
    return np.frombuffer(b"".join(file.read_bytes() for file in files), np.uint8)


class Windows(torch.utils.data.Dataset[torch.Tensor]):
    """Pieces of the text, one behind the other.

    Args:
        split: "train", or "eval" for the last part of the text.
        length: bytes of a piece.
        stride: from the begin of one piece to that of the next; `length` when None.
        num_examples: the first so many pieces; all when None.

    Raises:
        DataError: the text has not one piece of that length.
    """

    def __init__(
        self, split: str, length: int, stride: int | None = None, num_examples: int | None = None
    ) -> None:
        text = library_bytes()
        cut = round(len(text) * (1 - EVAL_FRACTION))
        self._text = text[cut:] if split == "eval" else text[:cut]
        self._length, self._stride = length, stride or length
        there = 1 + (len(self._text) - length) // self._stride
        if there < 1:
            raise DataError(f"max_sequence_length is {length}, the text of '{split}' has {len(self._text)}")
        self._count = there if num_examples is None else min(num_examples, there)

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: int) -> torch.Tensor:
        """Bytes `[length]`, int64."""
        begin = index * self._stride
        return torch.from_numpy(self._text[begin : begin + self._length].astype(np.int64))
