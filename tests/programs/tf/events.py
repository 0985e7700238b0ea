"""Reads the event files that a run leaves in its model_dir."""

from __future__ import annotations

from pathlib import Path

import tensorflow as tf


def read_scalars(model_dir: str | Path) -> dict[str, dict[int, float]]:
    """Return the scalars by tag and step."""
    scalars: dict[str, dict[int, float]] = {}
    for path in sorted(Path(model_dir).glob("events.out.tfevents.*")):
        for event in tf.compat.v1.train.summary_iterator(str(path)):
            for value in event.summary.value:
                if value.HasField("simple_value"):
                    scalars.setdefault(value.tag, {})[event.step] = value.simple_value
                elif value.HasField("tensor") and value.tensor.dtype == tf.float32.as_datatype_enum:
                    scalars.setdefault(value.tag, {})[event.step] = float(tf.make_ndarray(value.tensor))
    return scalars


def read_losses(model_dir: str | Path) -> list[float]:
    """Return the losses in the order of their steps."""
    return [loss for _, loss in sorted(read_scalars(model_dir)["loss"].items())]
