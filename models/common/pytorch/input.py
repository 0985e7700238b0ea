"""What the inputs of the example programs share."""

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
    """Full batches of this worker's records: in another order each epoch, or in their own for an evaluation.

    Args:
        records: all of them; every worker reads its batches alone.
        settings: an input group of the parameters.
        training: whether the records are shuffled.
        collate_fn: makes a batch of a list of records.

    Raises:
        DataError: not one batch can be filled.
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
            f"batch_size is {batch_size}, but this task has not so many of {len(records)} records; take a "
            "smaller batch_size or fewer workers"
        )
    return torch.utils.data.DataLoader(
        records, batch_size, sampler=order, drop_last=True, collate_fn=collate_fn
    )
