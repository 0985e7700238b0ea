"""The data loader of the example programs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

from cstorch.utils.data import DistributedSampler
from models.common.data import DataError


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
