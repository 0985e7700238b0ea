"""Windows of Python's own sources: bytes, and the bytes that follow them."""

from __future__ import annotations

from typing import Any

import torch

from models.common.pytorch.data import Windows, batches


def train_dataloader(params: dict[str, Any]) -> torch.utils.data.DataLoader[Any]:
    """Return shuffled batches of the training text: (ids, following ids), both int64 [batch, length]."""
    settings = params["train_input"]
    return batches(_windows("train", settings), settings, training=True, collate_fn=_shift)


def eval_dataloader(params: dict[str, Any]) -> torch.utils.data.DataLoader[Any]:
    """Return the batches of the held-out text, in order."""
    settings = params["eval_input"]
    return batches(_windows("eval", settings), settings, training=False, collate_fn=_shift)


def _windows(split: str, settings: dict[str, Any]) -> Windows:
    length = settings["max_sequence_length"]
    return Windows(split, length + 1, length, settings.get("num_examples"))


def _shift(windows: list[torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
    batch = torch.stack(windows)
    return batch[:, :-1].contiguous(), batch[:, 1:].contiguous()
