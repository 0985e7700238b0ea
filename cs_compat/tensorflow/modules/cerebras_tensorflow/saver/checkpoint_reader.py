"""The checkpoints of a folder, and the variables in one of them."""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import tensorflow as tf


class CheckpointReader:
    """Reads a checkpoint.

    Args:
        checkpoint: Prefix of its files.

    Raises:
        ValueError: There is no such checkpoint.
    """

    def __init__(self, checkpoint: str | os.PathLike[str]) -> None:
        self.checkpoint = os.fspath(checkpoint)
        if not self.is_a_checkpoint(self.checkpoint):
            raise ValueError(
                f"'{self.checkpoint}' is not a checkpoint, expected the prefix of one, model.ckpt-N"
            )
        self._reader = tf.train.load_checkpoint(self.checkpoint)

    @staticmethod
    def all_checkpoints(model_dir: str | os.PathLike[str]) -> list[str]:
        """Return the prefixes of the checkpoints that the index of a folder lists, oldest first."""
        state = tf.train.get_checkpoint_state(os.fspath(model_dir))
        return [] if state is None else list(state.all_model_checkpoint_paths)

    @staticmethod
    def is_a_checkpoint(checkpoint: str | os.PathLike[str]) -> bool:
        """Return True if the files of a checkpoint exist."""
        return bool(tf.io.gfile.glob(f"{os.fspath(checkpoint)}.index"))

    @property
    def tensor_names(self) -> list[str]:
        """Names of its variables."""
        return sorted(self._reader.get_variable_to_shape_map())

    def __getitem__(self, name: str) -> np.ndarray[Any, Any]:
        found: np.ndarray[Any, Any] = self._reader.get_tensor(name)
        return found
