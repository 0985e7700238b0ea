"""Handwritten digits: scikit-learn's bundled 8x8 images by default, or MNIST's IDX files.

Every batch is `(pixels [batch, 784] float32 in 0 to 1, labels [batch] int64)`.
"""

from __future__ import annotations

import gzip
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.nn import functional
from torch.utils.data import TensorDataset

from models.common.pytorch.data import batches
from models.fc_mnist.files import IMAGES_HEADER, LABELS_HEADER, PIXELS, SIDE, digits, idx_files


def train_dataloader(params: dict[str, Any]) -> torch.utils.data.DataLoader[Any]:
    """Return shuffled batches of the training split."""
    settings = params["train_input"]
    return batches(_records(settings, "train"), settings, training=True)


def eval_dataloader(params: dict[str, Any]) -> torch.utils.data.DataLoader[Any]:
    """Return the batches of the test split, in order."""
    settings = params["eval_input"]
    return batches(_records(settings, "test"), settings, training=False)


def _records(settings: dict[str, Any], split: str) -> TensorDataset:
    data_dir = settings.get("data_dir")
    return _digits(split) if data_dir is None else _mnist(Path(data_dir), split)


def _digits(split: str) -> TensorDataset:
    images, labels = digits(split)
    small = torch.from_numpy(images / 16)[:, None]
    scaled = functional.interpolate(small, (SIDE, SIDE), mode="bilinear")
    return TensorDataset(scaled.flatten(1), torch.from_numpy(labels).long())


def _mnist(data_dir: Path, split: str) -> TensorDataset:
    images_path, labels_path, count = idx_files(data_dir, split)
    pixels = torch.from_numpy(_payload(images_path, IMAGES_HEADER)).view(count, PIXELS)
    return TensorDataset(pixels / 255, torch.from_numpy(_payload(labels_path, LABELS_HEADER)).long())


def _payload(path: Path, header_size: int) -> Any:
    content = path.read_bytes()
    if path.suffix == ".gz":
        content = gzip.decompress(content)
    return np.frombuffer(content, np.uint8, offset=header_size).copy()
