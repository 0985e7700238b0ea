"""Writes checkpoints of version 0.5: a contiguous data set for each tensor, everything else in attributes."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import h5py
import ml_dtypes
import numpy as np
import torch

from cs_runtime.files import write_failure_cause
from cs_toolkit import __version__
from cs_toolkit.files import replacing
from cstorch.checkpoints.checksums import Extent, append_checksums
from cstorch.checkpoints.encoding import OBJECT_TYPES, encode_object, encode_tree, leaf_spec, tree_leaves
from cstorch.checkpoints.hdf5 import (
    ARRAY,
    BYTES,
    CHECKSUMS,
    LINKED,
    METADATA,
    NONE,
    OBJECT,
    SCALAR,
    SPEC,
    STRING,
    SUCCESS,
    TENSOR,
    VERSION,
    VERSION_KEY,
    WIRE_TYPES,
    Elements,
    array_dtype,
    make_array,
    make_bytes,
    put_mark,
    put_text,
    write_elements,
)
from cstorch.errors import CheckpointError
from cstorch.tracing.device import DeviceTensor

_ALIGNMENT = 64
"""Bytes; memory-mapped tensors begin at whole elements and cache lines."""


def write(state: Any, path: Path) -> None:
    """Write a nest to a temporary file, wait until it is on the disk, and rename it to the path."""
    entries = list(tree_leaves(state))
    if not isinstance(state, dict | list | tuple):
        raise CheckpointError(
            f"{path}: the state is a {type(state).__name__}, expected a dict, list or tuple; save "
            "{'name': value}"
        )
    _refuse_same_names([key for key, _ in entries], path)
    try:
        with replacing(path, durable=True) as temporary:
            _write_file(state, entries, temporary)
    except (OSError, RuntimeError) as error:  # h5py raises the latter if it cannot close a file
        cause = write_failure_cause(error) or error
        raise CheckpointError(
            f"{path} cannot be written: {cause}; expected an existing, writable folder with space"
        ) from error


def _write_file(state: Any, entries: list[tuple[str, Any]], path: Path) -> None:
    # Attributes of more than 64 KiB, such as descriptions of large models, need the later format.
    # The temporary file has a lock already, which NFS would take for a conflict with that of HDF5.
    file = h5py.File(
        path,
        "w",
        libver="v110",
        locking=False,
        alignment_threshold=1,
        alignment_interval=_ALIGNMENT,
        track_order=False,
    )
    with file:
        file.attrs[VERSION_KEY] = VERSION
        file.attrs["__cstorch_version__"] = __version__
        file.attrs[SPEC] = encode_tree(state)
        file.attrs[CHECKSUMS] = True
        writer = _Writer(file)
        for key, leaf in entries:
            writer.put(key, leaf)
        with ThreadPoolExecutor(1, "checkpoint") as pool:
            written = pool.submit(write_elements, path, writer.placed)
            writer.put_descriptions()
            extents = written.result()
        file.attrs[SUCCESS] = True
    append_checksums(path, extents)


class _Writer:
    """Writes leaves into an open file, except the elements of tensors and arrays.

    Attributes:
        placed: keys with the places of their elements, and the elements.
    """

    def __init__(self, file: h5py.File) -> None:
        self._file = file
        self.placed: list[tuple[str, Extent, Elements]] = []
        self._written: dict[tuple[Any, ...], str] = {}
        self._described: dict[str, dict[str, Any]] = {}

    def put(self, key: str, leaf: Any) -> None:
        """Write one leaf, or reserve the space of its elements."""
        try:
            self._described[key] = self._describe(key, leaf)
        except (ValueError, TypeError) as error:  # of h5py, for names that it does not accept
            raise CheckpointError(
                f"entry {key!r} cannot be stored ({error}); expected a nonempty name, and no other entry "
                "that is named like its part before a slash; rename it"
            ) from error

    def put_descriptions(self) -> None:
        """Write the descriptions of all leaves."""
        # After all data sets: HDF5 is slower if the two alternate.
        for key, described in self._described.items():
            spec = {SPEC: leaf_spec(key), "__objects__": [key], key + METADATA: described}
            put_text(self._file.id, key + METADATA, json.dumps(spec))

    def _describe(self, key: str, leaf: Any) -> dict[str, Any]:
        if isinstance(leaf, torch.Tensor):
            return self._put_tensor(key, leaf)
        if isinstance(leaf, np.ndarray) and leaf.dtype != object:
            narrow = leaf.dtype == ml_dtypes.bfloat16
            self._place(key, leaf.view(np.int16) if narrow else leaf)
            return {"is_bfloat16": narrow, "__TYPE__": ARRAY, "__NUMPY__": True, "compressed": False}
        if leaf is None:
            return _plain(NONE)
        if isinstance(leaf, str):
            return _plain(STRING, string_value=leaf)
        value = leaf.item() if isinstance(leaf, np.generic) else leaf
        if isinstance(value, bool | int | float):
            return _plain(SCALAR, scalar_value=value)
        if isinstance(value, OBJECT_TYPES):
            make_bytes(self._file, key, OBJECT, BYTES, _encode(key, value))
            return {"__TYPE__": OBJECT, BYTES: True}
        raise CheckpointError(
            f"entry {key} is a {type(leaf).__name__}, expected a tensor, an array, a number, a string or "
            "None; save its state_dict(), or values of these types"
        )

    def _put_tensor(self, key: str, tensor: torch.Tensor) -> dict[str, Any]:
        if tensor.layout is not torch.strided or tensor.is_quantized:
            raise CheckpointError(
                f"entry {key} is a sparse or quantized tensor, expected a dense one; save its parts, or "
                "to_dense() or dequantize() of it"
            )
        host = tensor.detach().cpu()
        source = host if isinstance(tensor, DeviceTensor) else tensor
        elements = (source.device, source.data_ptr(), source.dtype, tuple(source.shape), source.stride())
        first = self._written.setdefault(elements, key) if source.numel() else key
        if first != key:
            return _plain(LINKED, key=first, __LINKED__=True)
        described = {
            "__TORCH__": True,
            "shapes": [list(host.shape)],
            "dtypes": [str(host.dtype)],
            "rtfx_dtypes": [WIRE_TYPES[host.dtype]] if host.dtype in WIRE_TYPES else [],
            "__TYPE__": TENSOR,
            "__NUMPY__": True,
            "compressed": False,
        }
        self._place(key, host)
        return described

    def _place(self, key: str, elements: Elements) -> None:
        # Readers need the mark on the data set itself; everything else is in attributes of the file.
        dtype, shape = array_dtype(elements), tuple(elements.shape)
        data = make_array(self._file, key, dtype, shape)
        put_mark(data, "__NUMPY__")
        if elements.nbytes:
            extent = Extent(data.get_offset(), elements.nbytes, dtype.str, shape)
            self.placed.append((key, extent, elements))


def _encode(key: str, value: Any) -> bytes:
    try:
        return encode_object(value)
    except Exception as error:  # pickle raises the errors of the objects in it
        raise CheckpointError(
            f"entry {key} is a {type(value).__name__} that cannot be stored ({error}); expected one of "
            "numbers, strings and tuples"
        ) from error


def _plain(kind: str, **values: Any) -> dict[str, Any]:
    return {**values, "__TYPE__": kind, "__NONE__": True}


def _refuse_same_names(keys: list[str], path: Path) -> None:
    seen: set[str] = set()
    for key in keys:
        if key in seen:
            raise CheckpointError(
                f"{path}: two entries are called {key!r} in the file, whose names are joined with dots; "
                "rename one of them"
            )
        seen.add(key)
