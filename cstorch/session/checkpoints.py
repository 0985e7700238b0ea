"""Checkpoints of programs of the session API: files of `torch.save`, with all tensors on the CPU."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO

import torch
from torch.utils import _pytree as pytree

from cs_runtime.progress import report_checkpoint
from cs_runtime.tasks import is_chief
from cs_toolkit.files import replacing
from cstorch.errors import CheckpointError
from cstorch.session.closures import step_closure
from cstorch.step_count import steps_done
from cstorch.tracing.device import DeviceTensor


def to_cpu(data: Any) -> Any:
    """A nest whose tensors of the device are copies on this CPU."""
    return pytree.tree_map_only(DeviceTensor, lambda tensor: tensor.cpu().clone(), data)


@step_closure
def save(
    data: Any,
    file_or_path: str | Path | BinaryIO,
    master_only: bool = True,
    post_transfer_callback: Callable[[Any], Any] | None = None,
) -> None:
    """Writes a nest of tensors and plain data as `torch.save` does; within a step, behind it.

    The file is written beside its path and renamed, so a checkpoint is whole or not there.

    Args:
        data: dicts, lists, tensors.
        file_or_path: a path, or a file open for writing.
        master_only: workers write nothing.
        post_transfer_callback: is given the nest on the CPU; what it returns is written.

    Raises:
        CheckpointError: the directory is not writable or full.
        StateNotThereError: the system is at another step by now.
    """
    if master_only and not is_chief():
        return
    held = to_cpu(data)
    if post_transfer_callback is not None:
        held = post_transfer_callback(held)
    if not isinstance(file_or_path, str | Path):
        torch.save(held, file_or_path)
        return
    path = Path(file_or_path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(path, durable=True) as beside, beside.open("wb") as file:
            torch.save(held, file)
    except (OSError, RuntimeError) as error:
        raise CheckpointError(
            f"cannot write checkpoint '{path}': {error}; older checkpoints are as they were. Free space or "
            "give a writable directory"
        ) from error
    report_checkpoint(steps_done(), path)
