"""Reads checkpoints of versions 0.4 and 0.5. Nothing in a file is executed."""

from __future__ import annotations

import json
import logging
import math
import mmap
import os
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO
from urllib.parse import unquote

import h5py
import ml_dtypes
import numpy as np
import torch

from cstorch.checkpoints.checksums import Checksums
from cstorch.checkpoints.encoding import decode_object, decode_tree
from cstorch.checkpoints.hdf5 import (
    ARRAY,
    BYTES,
    CHECKSUMS,
    LINKED,
    METADATA,
    NONE,
    SCALAR,
    SPEC,
    STRING,
    SUCCESS,
    TENSOR,
    VERSION,
    VERSION_KEY,
    check_heaps,
    data_set,
    read_array,
    text,
)
from cstorch.errors import CheckpointError

log = logging.getLogger("cstorch")

SIGNATURE = b"\x89HDF\r\n\x1a\n"
_OLD_VERSION = 0.4
_OLD_TYPE = "__H5_TYPE__"
_MAX_GROUPS = 100


def read(path: Path) -> Any:
    """Read the nest in an HDF5 file.

    Raises:
        CheckpointError: the file is damaged, is not a checkpoint, refers to other files, or was changed while
            it was read.
    """
    try:
        with path.open("rb") as raw, _refuse_changes(path, raw):
            checksums = Checksums.read(path, raw.fileno())
            if checksums is None:
                check_heaps(path)
            else:
                checksums.check(raw.fileno())
            with h5py.File(path, "r") as file:
                return _Reader(file, path, raw, checksums).read()
    except CheckpointError:
        raise
    except Exception as error:  # h5py and json raise errors of many classes for damage
        raise CheckpointError(
            f"{path} is damaged or truncated ({str(error) or type(error).__name__}); expected a complete "
            "checkpoint: load an older one, or copy or save it again"
        ) from error


@contextmanager
def _refuse_changes(path: Path, raw: BinaryIO) -> Iterator[None]:
    """Raise an error, instead of those of the body, if an open file is changed meanwhile."""
    before = os.fstat(raw.fileno())
    try:
        yield
    finally:
        after = os.fstat(raw.fileno())
        if (after.st_size, after.st_mtime_ns) != (before.st_size, before.st_mtime_ns):
            raise CheckpointError(
                f"{path} was changed while it was read; load it again, or an older one; a program that "
                "replaces a checkpoint should write another file and rename it"
            )


class _Reader:
    """Reads leaves of an open file."""

    def __init__(self, file: h5py.File, path: Path, raw: BinaryIO, checksums: Checksums | None) -> None:
        self._file = file
        self._path = path
        self._checksums = checksums
        self._read: dict[str, Any] = {}
        self._objects: list[str] = []
        self._is_old = False
        # Copy-on-write: writing into a tensor changes no file.
        self._map = mmap.mmap(raw.fileno(), 0, access=mmap.ACCESS_COPY)

    def read(self) -> Any:
        """Read the whole nest."""
        version = self._file.attrs.get(VERSION_KEY)
        if version == VERSION:
            if not self._file.attrs.get(SUCCESS, False):
                raise CheckpointError(
                    f"{self._path}: the program that wrote it was stopped before the end; expected the mark "
                    f"{SUCCESS}, load an older checkpoint"
                )
            if self._checksums is None and self._file.attrs.get(CHECKSUMS, False):
                raise CheckpointError(
                    f"{self._path}: its checksums are missing: it was truncated, or another program changed "
                    "it; load an older checkpoint or copy the file again; if it was changed on purpose, "
                    f"delete the attribute {CHECKSUMS} of the file"
                )
            found = decode_tree(text(self._file.id, SPEC), self._leaf)
        elif version == _OLD_VERSION:
            self._is_old = True
            found = _without_spec({key: self._leaf(key) for key in _data_sets(self._file)})
        else:
            got = "no version (another kind of HDF5 file)" if version is None else f"version {version}"
            raise CheckpointError(
                f"{self._path} has {got}, expected a checkpoint of version {_OLD_VERSION} or {VERSION}; "
                "load it with the release that wrote it and save it there with torch.save"
            )
        if self._checksums is None:
            log.info(
                "%s has no checksums: an older release or another program wrote it; save it again to have "
                "damage noticed",
                self._path,
            )
        if self._objects:
            warnings.warn(
                f"{self._path}: None replaces {len(self._objects)} pickled Python objects, which are not "
                f"restored, because that would run code from the file: {', '.join(self._objects[:5])}",
                stacklevel=4,
            )
        return found

    def _leaf(self, key: str) -> Any:
        if key not in self._read:
            try:
                self._read[key] = self._read_leaf(key)
            except CheckpointError:
                raise
            except Exception as error:  # see `read`
                reason = str(error) or type(error).__name__
                raise CheckpointError(
                    f"{self._path} is damaged: {key} cannot be read ({reason}); load an older checkpoint, or "
                    "copy or save it again"
                ) from error
        return self._read[key]

    def _read_leaf(self, key: str) -> Any:
        if self._is_old:
            return self._old_leaf(key)
        described = json.loads(text(self._file.id, key + METADATA))[key + METADATA]
        kind = described["__TYPE__"]
        if kind == LINKED:
            return self._leaf(described["key"])
        if kind == TENSOR:
            return self._tensor(key).view(_torch_type(described["dtypes"][0]))
        if kind == ARRAY:
            return self._array(key, described["is_bfloat16"])
        if kind in (SCALAR, STRING):
            return described["scalar_value" if kind == SCALAR else "string_value"]
        return None if kind == NONE else self._object(key)

    def _old_leaf(self, key: str) -> Any:
        data_set(self._file, key)  # refuses links
        data = self._file[key]
        kind = _text(data.attrs.get(_OLD_TYPE, "")).removeprefix("Deferred")
        if kind.startswith("TorchTensor"):
            narrow = data.attrs.get("is_bfloat16", False)
            return self._tensor(key).view(torch.bfloat16) if narrow else self._tensor(key)
        if kind.startswith("NumpyArray"):
            return self._array(key, data.attrs.get("is_bfloat16", False))
        if kind.startswith("Scalar"):
            return data.attrs["scalar_value"].item() if "scalar_value" in data.attrs else data[()].item()
        if kind.startswith("String"):
            return _text(data.attrs["string_value"])
        return None if kind.startswith("None") else self._object(key, data.attrs.get("object_value"))

    def _object(self, key: str, hexadecimal: Any = None) -> Any:
        """Decode an object that consists of plain data; return None for any other."""
        try:
            if hexadecimal is not None:
                return decode_object(bytes.fromhex(_text(hexadecimal)))
            return decode_object(self._file[key].attrs[BYTES].tobytes())
        except (KeyError, ValueError):
            self._objects.append(key)
            return None

    def _array(self, key: str, narrow: bool) -> np.ndarray[Any, Any]:
        found: np.ndarray[Any, Any] = self._tensor(key).numpy()
        return found.view(ml_dtypes.bfloat16) if narrow else found

    def _tensor(self, key: str) -> torch.Tensor:
        """Map the elements of a data set if their layout in the file is that in memory; else read them."""
        data = data_set(self._file, key)
        shape, dtype, offset = data.shape, data.dtype, data.get_offset()
        size = math.prod(shape)
        if offset is None or not dtype.isnative or offset % dtype.itemsize or not size:
            return torch.from_numpy(read_array(data, len(self._map)))
        if self._checksums is not None and not self._checksums.covers(key, offset, dtype.str, shape):
            raise ValueError("its checksum is missing")
        # numpy and PyTorch share this type: dtypes that only PyTorch has are stored as integers.
        element = torch.from_numpy(np.empty(0, dtype)).dtype
        return torch.frombuffer(self._map, dtype=element, count=size, offset=offset).view(shape)


def _data_sets(file: h5py.File) -> list[str]:
    """Return the names of all data sets; a slash in a key makes a group."""
    found: list[str] = []

    def add(name: str, item: Any) -> None:
        # h5py opens each item from the root: 3,000 nested groups took 12 s.
        if name.count("/") > _MAX_GROUPS:
            raise ValueError(f"its groups are nested more than {_MAX_GROUPS} deep")
        if isinstance(item, h5py.Dataset):
            found.append(name)

    file.visititems(add)
    return found


def _without_spec(leaves: Mapping[str, Any]) -> Any:
    """Build a nest from the keys of version 0.4, whose description is a pickle."""
    # Parts between dots are percent-quoted. The keys leave open: the state dict of a model has one level, so
    # dots below `model` belong to names; levels named 0, 1, 2 ... are lists, except an optimizer's `state`,
    # a dict with numbers as keys; tuples become lists; empty containers are lost.
    root: dict[str, Any] = {}
    for key, leaf in leaves.items():
        parts = [unquote(part) for part in key.split(".")]
        if parts[0] == "model":
            parts = ["model", ".".join(parts[1:])]
        level = root
        for part in parts[:-1]:
            level = level.setdefault(part, {})
        level[parts[-1]] = leaf
    return _with_lists(root, "")


def _with_lists(level: Any, name: str) -> Any:
    if not isinstance(level, dict):
        return level
    built = {key: _with_lists(child, key) for key, child in level.items()}
    if not built or not all(key.isdigit() for key in built):
        return built
    numbered = {int(key): built[key] for key in sorted(built, key=int)}
    is_list = name != "state" and list(numbered) == list(range(len(numbered)))
    return list(numbered.values()) if is_list else numbered


def _torch_type(name: str) -> torch.dtype:
    found = getattr(torch, name.removeprefix("torch."), None)
    if not isinstance(found, torch.dtype):
        raise CheckpointError(
            f"the element type {name} is unknown; expected one of this PyTorch, {torch.__version__}"
        )
    return found


def _text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)
