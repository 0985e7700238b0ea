"""Checkpoints in HDF5: written atomically, and read when their tensors are used."""

from __future__ import annotations

import logging
import os
import zipfile
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, TypeAlias

import torch
from torch.utils import _pytree as pytree

from cs_runtime.progress import report_checkpoint
from cs_toolkit import object_store
from cstorch.checkpoints.reader import SIGNATURE, read
from cstorch.checkpoints.writer import write
from cstorch.chosen_backend import current_backend
from cstorch.errors import CheckpointError
from cstorch.tracing.device import DEVICE, to_device
from cstorch.tracing.state import steps_done

log = logging.getLogger("cstorch")

_CHUNK_BYTES = 1 << 20

PathLike = str | os.PathLike[str]
MapLocation: TypeAlias = str | torch.device | Mapping[str, str] | Callable[[Any, str], Any] | None


def save(state: Any, path: PathLike) -> None:
    """Write a nest of dicts, lists, tuples and deques.

    Its leaves are tensors, arrays, numbers, strings, None, sets of such values, sizes and element types.

    Tensors of the device are written with their values on this CPU. Tensors that share memory, such as tied
    weights, are written once, and are one tensor after `load`. If the backend has `max_checkpoints`, the
    oldest checkpoint that this process has saved is deleted.

    Raises:
        CheckpointError: the nest has other leaves, the folder is missing, or the disk is full. A file that
            was at the path before is unchanged.
        ValueUnavailableError: a tensor of a step is saved outside of a step closure.
        ObjectStoreError: the path is the URL of an object, s3://BUCKET/KEY, that cannot be written.
    """
    if object_store.is_url(path):
        with object_store.uploaded(path) as file:
            write(state, file)
    else:
        write(state, Path(path))
    report_checkpoint(steps_done(), path)
    backend = current_backend(raise_exception=False)
    if backend is not None:
        backend.keep_newest(path)


def load(
    path: PathLike,
    map_location: MapLocation = None,
    *,
    weights_only: bool | None = None,
    mmap: bool | None = None,
) -> Any:
    """Read a checkpoint of `save`, a file of `torch.save`, or safetensors.

    An HDF5 file is compared with its checksums. One that another program or an older release wrote has none.

    Tensors of an HDF5 file are memory-mapped: their elements are read when they are used, and writing into
    one changes no file. Compressed ones, from other writers of the format, are read immediately. A file that
    is modified in place while its tensors are in use (`save` replaces it instead) changes them, and using
    those of one that is truncated ends the process with SIGBUS.

    Args:
        path: the file, or the URL of an object, s3://BUCKET/KEY, which is downloaded.
        map_location: device of the tensors, such as "cpu" or "xla"; None means this CPU, and so do the
            functions and dictionaries that `torch.load` takes.
        weights_only: accepted as by `torch.load`, without effect: nothing in a file is executed.
        mmap: accepted as by `torch.load`, without effect.

    Raises:
        CheckpointError: the file is missing, damaged, not finished, of another version or another kind,
            refers to other files, or contains Python objects that could only be restored by running code
            from the file.
        ObjectStoreError: an object cannot be read.
    """
    if object_store.is_url(path):
        with object_store.downloaded(path) as file:  # tensors stay mapped after its removal
            state = _read_any(file)
    else:
        state = _read_any(Path(path))
    if not isinstance(map_location, str | torch.device):
        return state
    device, moved = torch.device(map_location), dict[int, torch.Tensor]()

    def move(tensor: torch.Tensor) -> torch.Tensor:
        if id(tensor) not in moved:
            moved[id(tensor)] = to_device(tensor) if device.type == DEVICE.type else tensor.to(device)
        return moved[id(tensor)]

    return pytree.tree_map_only(torch.Tensor, move, state)


def load_newest(paths: Iterable[PathLike]) -> tuple[Path, Any] | None:
    """Read the first checkpoint that is intact; warn of those before it.

    Args:
        paths: newest first; a name that ends with `_0` is that of step 0.

    Returns:
        The path and the state; None if there are no paths.

    Raises:
        CheckpointError: all checkpoints after step 0 are damaged, or missing.
    """
    problems: list[CheckpointError] = []
    for path in map(Path, paths):
        # The checkpoint of step 0 replaces no damaged one: that would start the training run over.
        if problems and path.stem.endswith("_0"):
            continue
        try:
            state = load(path)
        except CheckpointError as error:
            problems.append(error)
            continue
        for problem in problems:
            log.warning("%s; using '%s' instead", problem, path)
        return path, state
    if problems:
        others = f"; the {len(problems) - 1} before it are damaged, too" if len(problems) > 1 else ""
        raise CheckpointError(f"{problems[0]}{others}; to start from step 0, use an empty model_dir")
    return None


def _read_any(path: Path) -> Any:
    try:
        with path.open("rb") as file:
            start = file.read(len(SIGNATURE))
    except OSError as error:
        raise CheckpointError(
            f"{path}: {error.strerror}; expected a checkpoint, check the path of cstorch.load"
        ) from error
    if start == SIGNATURE:
        return read(path)
    return _read_safetensors(path) if path.suffix == ".safetensors" else _read_torch(path)


def _read_torch(path: Path) -> Any:
    try:
        if zipfile.is_zipfile(path):  # not the format of PyTorch before 1.6
            _check_members(path)
        return torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # torch raises the errors of pickle and zip, among others
        raise CheckpointError(
            f"{path} is neither an HDF5 checkpoint nor a file of torch.save with only tensors and plain "
            f"values ({str(error).splitlines()[0] if str(error) else type(error).__name__}); "
            "check that the file is complete and is a checkpoint; Python objects in it are not restored, "
            "because that would run code from the file: save state_dict() instead"
        ) from error


def _check_members(path: Path) -> None:
    """Compare the members of a ZIP file with their checksums, which `torch.load` does not do.

    Raises:
        ValueError: a member is damaged; names it.
    """
    damaged = []
    with zipfile.ZipFile(path) as archive:
        members = archive.infolist()
        for member in members:
            try:
                with archive.open(member) as file:
                    while file.read(_CHUNK_BYTES):
                        pass
            except zipfile.BadZipFile:
                damaged.append(member.filename)
    # torch.serialization.set_crc32_options(False) writes files without checksums of their content.
    if damaged and len(damaged) < len(members):
        raise ValueError(f"{damaged[0]} in it is damaged")


def _read_safetensors(path: Path) -> Any:
    from safetensors.torch import load_file

    try:
        return load_file(path)
    except Exception as error:  # safetensors documents no error class
        raise CheckpointError(
            f"{path} is not a complete file of safetensors ({error}); copy or save it again"
        ) from error


__all__ = ["load", "load_newest", "save"]
