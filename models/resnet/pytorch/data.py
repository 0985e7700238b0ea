"""Generated images: a class is a pattern of colored cells, an image is a pattern with noise.

Every batch is `(images [batch, channels, size, size] float32, classes [batch] int64)`.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.nn import functional

from models.common.pytorch.data import batches

CELLS = 4
"""Number of cells of one color in each direction of a pattern."""
PATTERN_SEED = 20


class Patterns(torch.utils.data.Dataset[tuple[torch.Tensor, torch.Tensor]]):
    """Generated images; image i depends on `seed` and i.

    Args:
        settings: An input group of the parameters.
        model: The group `model`.
        seed: Seed of the images; the patterns are always the same.
    """

    def __init__(self, settings: dict[str, Any], model: dict[str, Any], seed: int) -> None:
        self._count, self._noise, self._seed = settings["num_records"], settings["noise"], seed
        size, channels = model["image_size"], model["num_channels"]
        cells = torch.randn(
            model["num_classes"],
            channels,
            CELLS,
            CELLS,
            generator=torch.Generator().manual_seed(PATTERN_SEED),
        )
        self._patterns = functional.interpolate(cells, (size, size), mode="nearest")

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Return an image [channels, size, size] and its class."""
        draws = torch.Generator().manual_seed(self._seed * 1_000_003 + index)
        label = torch.randint(len(self._patterns), (), generator=draws)
        pattern = self._patterns[label]
        return pattern + self._noise * torch.randn(pattern.shape, generator=draws), label


def train_dataloader(params: dict[str, Any]) -> torch.utils.data.DataLoader[Any]:
    """Return shuffled batches of the training images."""
    settings = params["train_input"]
    images = Patterns(settings, params["model"], seed=settings["shuffle_seed"])
    return batches(images, settings, training=True)


def eval_dataloader(params: dict[str, Any]) -> torch.utils.data.DataLoader[Any]:
    """Return batches of other images, in order."""
    settings = params["eval_input"]
    return batches(Patterns(settings, params["model"], seed=0), settings, training=False)
