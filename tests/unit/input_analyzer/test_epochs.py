"""Samples of an epoch, of datasets whose records a library has batched."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from input_analyzer.examine import epoch_samples
from input_rules.tf.pipeline import trace


def samples_of(make: Callable[[], Any]) -> int | None:
    return epoch_samples(trace(make).pipeline)


def test_an_epoch_of_batches_of_a_library(tmp_path: Path) -> None:
    picture = tf.io.encode_png(np.zeros((4, 4, 3), np.uint8)).numpy()
    for number in range(6):
        (tmp_path / "images" / str(number % 2)).mkdir(parents=True, exist_ok=True)
        (tmp_path / "images" / str(number % 2) / f"{number}.png").write_bytes(picture)
    (tmp_path / "table.csv").write_text("x,y\n" + "1,2\n" * 20)

    def images() -> Any:
        folder = tmp_path / "images"
        return tf.keras.utils.image_dataset_from_directory(folder, image_size=(4, 4), batch_size=4).repeat()

    def table() -> Any:
        return tf.data.experimental.make_csv_dataset(str(tmp_path / "table.csv"), 8, label_name="y")

    assert samples_of(images) == 8  # 6 images are 2 batches
    assert samples_of(table) is None


def test_an_epoch_of_what_is_batched_again() -> None:
    assert samples_of(lambda: tf.data.Dataset.range(100).batch(10).repeat()) == 100
    assert samples_of(lambda: tf.data.Dataset.range(20).batch(4, True).rebatch(2, True)) is None
