"""Event files for TensorBoard, without TensorFlow."""

from __future__ import annotations

import os
import sys
from types import ModuleType
from typing import Any

import numpy as np

_NO_TENSORFLOW = "tensorboard.compat.notf"

# TensorBoard takes its own stand-in for TensorFlow's file system where this module is there, and imports all
# of TensorFlow, in seconds, where it is not.
if "tensorflow" not in sys.modules:
    sys.modules.setdefault(_NO_TENSORFLOW, ModuleType(_NO_TENSORFLOW))

from torch.utils.tensorboard import SummaryWriter as TorchWriter  # noqa: E402


class SummaryWriter(TorchWriter):
    """PyTorch's writer of event files.

    Args:
        log_dir: Folder of the files; `runs/<date>_<host>` when None.
        base_step: What `summarize_scalar` and `summarize_tensor` count their steps from; the number of steps
            that the state had behind it before the loop when None.
        arguments: Of PyTorch's writer.
    """

    def __init__(
        self,
        log_dir: str | os.PathLike[str] | None = None,
        *arguments: Any,
        base_step: int | None = None,
        **keywords: Any,
    ) -> None:
        super().__init__(None if log_dir is None else os.fspath(log_dir), *arguments, **keywords)
        self.base_step = base_step

    @property
    def cs_events_dir(self) -> str:
        """The folder of the summaries that steps write: that of the event files."""
        return str(self.log_dir)

    def add_tensor(self, name: str, tensor: Any, step: int | None = None, **keywords: Any) -> None:
        """Write a tensor.

        Args:
            name: Its name in TensorBoard.
            tensor: The tensor.
            step: Number of the step; also by the name `global_step`.
            keywords: Of PyTorch's writer.
        """
        super().add_tensor(name, tensor, keywords.pop("global_step", step), **keywords)


class SummaryReader:
    """What event files of a folder say.

    Args:
        log_dir: The folder.
    """

    def __init__(self, log_dir: str | os.PathLike[str]) -> None:
        from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

        self._events = EventAccumulator(os.fspath(log_dir), size_guidance={"scalars": 0, "tensors": 0})
        self._events.Reload()

    def scalar_names(self) -> list[str]:
        """Names of the scalars."""
        return list(self._events.Tags()["scalars"])

    def tensor_names(self) -> list[str]:
        """Names of the tensors."""
        return list(self._events.Tags()["tensors"])

    def read_scalar(self, name: str) -> dict[int, float]:
        """The values of a scalar, by step."""
        return {event.step: float(event.value) for event in self._events.Scalars(name)}

    def read_tensor(self, name: str, step: int | None = None) -> dict[int, np.ndarray[Any, Any]]:
        """The values of a tensor, by step; of one step alone where it is given."""
        from tensorboard.util.tensor_util import make_ndarray

        events = [event for event in self._events.Tensors(name) if step in (None, event.step)]
        return {event.step: make_ndarray(event.tensor_proto) for event in events}
