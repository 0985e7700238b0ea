"""Event files for TensorBoard, without TensorFlow."""

from __future__ import annotations

import fnmatch
import logging
import os
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

log = logging.getLogger("cstorch")

_EVENT_FILES = "*events.out.tfevents.*"

_NO_TENSORFLOW = "tensorboard.compat.notf"

# If this module exists, TensorBoard uses its own replacement for TensorFlow's file system. Otherwise it
# imports all of TensorFlow, which takes seconds.
if "tensorflow" not in sys.modules:
    sys.modules.setdefault(_NO_TENSORFLOW, ModuleType(_NO_TENSORFLOW))

from torch.utils.tensorboard import SummaryWriter as TorchWriter  # noqa: E402


class SummaryWriter(TorchWriter):
    """PyTorch's writer of event files.

    Args:
        log_dir: Directory for the files; `runs/<date>_<host>` if None.
        base_step: First step of `summarize_scalar` and `summarize_tensor`; None for the steps that the state
            had completed before the loop.
        arguments: Arguments of PyTorch's writer.
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


@dataclass(frozen=True)
class TensorDescriptor:
    """A tensor of a step, as event files have it.

    Attributes:
        step: Number of the step.
        ns_since_epoch: When it was written, in nanoseconds since 1970.
        tensor: The tensor.
    """

    step: int
    ns_since_epoch: int
    tensor: torch.Tensor

    @property
    def utctime(self) -> datetime:
        """When it was written, in UTC, without a time zone."""
        return datetime.fromtimestamp(self.ns_since_epoch / 1e9, UTC).replace(tzinfo=None)

    def to_dict(self) -> dict[str, Any]:
        """Return the attributes by name."""
        return {"step": self.step, "ns_since_epoch": self.ns_since_epoch, "tensor": self.tensor}

    @staticmethod
    def from_dict(values: dict[str, Any]) -> TensorDescriptor:
        """Return the descriptor of a dictionary from `to_dict`."""
        return TensorDescriptor(**values)


class SummaryReader:
    """Reads the event files in directories and below them.

    Args:
        log_dirs: One directory, or several.
        filter: Prefix of the groups to read, as `FILTER_2/loss`; None for all names.
        keywords: Arguments of TensorBoard's `EventAccumulator`.

    Raises:
        RuntimeError: There is no event file.
    """

    def __init__(
        self,
        log_dirs: str | os.PathLike[str] | Iterable[str | os.PathLike[str]],
        filter: str | None = None,  # noqa: A002
        **keywords: Any,
    ) -> None:
        from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

        given = [log_dirs] if isinstance(log_dirs, str | os.PathLike) else list(log_dirs)
        folders = sorted({file.parent for log_dir in given for file in Path(log_dir).rglob(_EVENT_FILES)})
        if not folders:
            raise RuntimeError(f"no event files under {', '.join(map(str, given))}, expected those of a run")
        all_events = {"size_guidance": {"scalars": 0, "tensors": 0}, **keywords}
        self._runs = [EventAccumulator(os.fspath(folder), **all_events) for folder in folders]
        self._pattern = "*" if filter is None else f"{filter}*/*"
        self.reload()

    def reload(self) -> None:
        """Read events that were written since the last call."""
        for run in self._runs:
            run.Reload()

    def Tags(self) -> dict[str, list[str]]:  # noqa: N802
        """Return the names of each kind."""
        return {kind: sorted(self._names(kind)) for kind in ("scalars", "tensors")}

    def scalar_names(self) -> set[str]:
        """Return the names of the scalars."""
        return self._names("scalars")

    def scalar_groups(self) -> set[str]:
        """Return the parts before the first slash in the names of the scalars."""
        return {name.partition("/")[0] for name in self.scalar_names()}

    def tensor_names(self) -> set[str]:
        """Return the names of the tensors."""
        return self._names("tensors")

    def read_scalar(self, name: str, step: int | None = None) -> Any:
        """Return the events of a scalar, which have `step`, `value` and `wall_time`, or the one of a step.

        Raises:
            RuntimeError: There is no scalar of that name.
            KeyError: It has no value at that step.
        """
        runs = self._runs_with("scalars", name)
        if not runs:
            known = ", ".join(sorted(self.scalar_names()))
            raise RuntimeError(f"there is no scalar {name!r}, expected one of {known}")
        events = [event for run in runs for event in run.Scalars(name)]
        if step is None:
            return events
        for event in events:
            if event.step == step:
                return event
        raise KeyError(f"the scalar {name!r} has no value at step {step}")

    Scalars = read_scalar

    def read_tensor(self, name: str, step: int | None = None, latest_only: bool = True) -> Any:
        """Return the descriptors of a tensor by step; of one step the descriptor, or None without one.

        Args:
            name: Its name.
            step: Number of the step; None for all.
            latest_only: Of several of one step only the last; else each step has a list.
        """
        from tensorboard.util.tensor_util import make_ndarray

        found: dict[int, list[TensorDescriptor]] = {}
        for run in self._runs_with("tensors", name):
            for event in run.Tensors(name):
                tensor = torch.from_numpy(make_ndarray(event.tensor_proto).copy())
                descriptor = TensorDescriptor(event.step, int(event.wall_time * 1e9), tensor)
                found.setdefault(event.step, []).append(descriptor)
        if not found or step not in (None, *found):
            log.warning("there is no tensor %r%s", name, "" if step is None else f" at step {step}")
            return None
        for written in found.values():
            written.sort(key=lambda descriptor: descriptor.ns_since_epoch)
        by_step = {number: written[-1] if latest_only else written for number, written in found.items()}
        return by_step if step is None else by_step[step]

    def _names(self, kind: str) -> set[str]:
        return {name for run in self._runs for name in fnmatch.filter(run.Tags()[kind], self._pattern)}

    def _runs_with(self, kind: str, name: str) -> list[Any]:
        self.reload()
        return [run for run in self._runs if name in self._names(kind) and name in run.Tags()[kind]]
