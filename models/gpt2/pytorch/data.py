"""Pieces of Python's own sources: what stands at a place, and what stands one place further."""

from __future__ import annotations

from typing import Any

import torch

from models.common.pytorch.input import batches
from models.common.pytorch.text import Windows


def train_dataloader(params: dict[str, Any]) -> torch.utils.data.DataLoader[Any]:
    """Shuffled batches of the training text: (ids, ids that follow), both int64 [batch, length]."""
    settings = params["train_input"]
    return batches(_windows("train", settings), settings, training=True, collate_fn=_shifted)


def eval_dataloader(params: dict[str, Any]) -> torch.utils.data.DataLoader[Any]:
    """Batches of the text that no training sees, in order."""
    settings = params["eval_input"]
    return batches(_windows("eval", settings), settings, training=False, collate_fn=_shifted)


def _windows(split: str, settings: dict[str, Any]) -> Windows:
    length = settings["max_sequence_length"]
    return Windows(split, length + 1, length, settings.get("num_examples"))


def _shifted(windows: list[torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
    batch = torch.stack(windows)
    return batch[:, :-1].contiguous(), batch[:, 1:].contiguous()
