"""Small helpers of model code."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf


class GetWeights:
    """The variables of a checkpoint, including the global step: iterates over (name, value).

    Args:
        checkpoint: Prefix of a checkpoint, or a directory for the newest one in it.

    Raises:
        ValueError: There is no such checkpoint.
    """

    def __init__(self, checkpoint: str | Path) -> None:
        try:
            self._reader = tf.train.load_checkpoint(str(checkpoint))
        except (ValueError, tf.errors.OpError) as error:
            raise ValueError(f"'{checkpoint}' is not a checkpoint: {error}") from error

    def __iter__(self) -> Iterator[tuple[str, np.ndarray]]:
        for name in sorted(self._reader.get_variable_to_shape_map()):
            yield name, self._reader.get_tensor(name)


def boundary_cast(x: Any, name: str | None = None, back_cast: bool = True) -> Any:
    """Return the tensor unchanged: the number format is chosen for the whole model, by `precision`."""
    return tf.identity(x, name)


def summary_layer(x: Any) -> Any:
    """Return the tensor, and record a histogram of it as a summary."""
    return summarize_tensor(x)


def summarize_tensor(x: Any, is_gradient_tensor: bool = False, op_name_if_grad: str | None = None) -> Any:
    """Return the tensor, and record a histogram of it as a summary.

    Args:
        x: A tensor of a graph; all other tensors are only returned.
        is_gradient_tensor: True for a gradient, whose summary is named `op_name_if_grad`.
        op_name_if_grad: Name of the summary of a gradient.
    """
    y = tf.identity(x)
    if isinstance(y, tf.Tensor) and not tf.executing_eagerly():
        name = op_name_if_grad if is_gradient_tensor and op_name_if_grad else y.op.name
        tf.compat.v1.summary.histogram(name, y)
    return y
