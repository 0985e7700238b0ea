"""Windows of Python's own sources with masked bytes.

Every batch is `(ids, labels)`, int64 [batch, length]. A label is the original byte at a masked position, and
`model.IGNORED` at all others.
"""

from __future__ import annotations

from typing import Any

import torch

from models.bert.pytorch.model import IGNORED
from models.common.pytorch.data import VOCABULARY, Windows, batches

MASK = VOCABULARY
"""The token after those of the bytes."""
MASKED_FRACTION = 0.15


class MaskedText(torch.utils.data.Dataset[tuple[torch.Tensor, torch.Tensor]]):
    """Texts with 15 % of the bytes masked: 80 % of these become MASK, 10 % random bytes; the rest stay.

    The masked positions depend on `seed` and on the number of the text, so they are the same in every epoch.
    """

    def __init__(self, texts: Windows, seed: int) -> None:
        self._texts, self._seed = texts, seed

    def __len__(self) -> int:
        return len(self._texts)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Return ids and labels, int64 [length]."""
        text = self._texts[index]
        draws = torch.Generator().manual_seed(self._seed * 1_000_003 + index)
        hidden = torch.randperm(len(text), generator=draws)[: max(1, round(MASKED_FRACTION * len(text)))]
        kind = torch.rand(len(hidden), generator=draws)
        drawn = torch.randint(VOCABULARY, (len(hidden),), generator=draws)
        labels = torch.full_like(text, IGNORED)
        labels[hidden] = text[hidden]
        seen = torch.where(kind < 0.9, drawn, text[hidden])
        text[hidden] = torch.where(kind < 0.8, MASK, seen)
        return text, labels


def train_dataloader(params: dict[str, Any]) -> torch.utils.data.DataLoader[Any]:
    """Return shuffled batches of the training text."""
    settings = params["train_input"]
    return batches(_texts("train", settings), settings, training=True)


def eval_dataloader(params: dict[str, Any]) -> torch.utils.data.DataLoader[Any]:
    """Return the batches of the held-out text, in order."""
    settings = params["eval_input"]
    return batches(_texts("eval", settings), settings, training=False)


def _texts(split: str, settings: dict[str, Any]) -> MaskedText:
    windows = Windows(split, settings["max_sequence_length"], num_examples=settings.get("num_examples"))
    return MaskedText(windows, settings["mask_seed"])
