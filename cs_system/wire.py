"""Tensors as chunk messages and back: raw little-endian elements in C order with name, dtype and shape."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import ml_dtypes
import numpy as np

from cs_system.errors import WireFormatError
from cs_system.proto import cs_system_pb2 as pb

# Bytes of tensor data in one message. gRPC in Python is fastest near 1 MiB and collapses with tens of MiB.
CHUNK_BYTES = 1 << 20
# Limit of a message, with room for names and shapes beside the data.
MESSAGE_BYTES = 4 << 20
# Tensors of one message: their names take room too.
MAX_TENSORS = 2048

_DTYPES: dict[str, np.dtype[Any]] = {
    name: np.dtype(name)
    for name in (
        "bool", "int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64",
        "float16", "float32", "float64",
    )
} | {"bfloat16": np.dtype(ml_dtypes.bfloat16)}  # fmt: skip


def dtype_named(name: str) -> np.dtype[Any]:
    """The numpy dtype of a name on the wire.

    Raises:
        WireFormatError: a dtype that does not travel.
    """
    try:
        return _DTYPES[name]
    except KeyError:
        raise WireFormatError(
            f"dtype '{name}' cannot be sent; expected one of {', '.join(_DTYPES)}"
        ) from None


def pack_tensors(
    tensors: Mapping[str, np.ndarray], chunk_bytes: int = CHUNK_BYTES
) -> Iterator[list[pb.TensorChunk]]:
    """Groups of chunks with at most `chunk_bytes` of data each; no group for no tensors."""
    group: list[pb.TensorChunk] = []
    room = chunk_bytes
    for name, array in tensors.items():
        dtype_named(array.dtype.name)
        data = _little_endian_bytes(array)
        offset = 0
        while offset < len(data) or offset == 0:
            chunk = pb.TensorChunk(name=name, offset=offset, data=bytes(data[offset : offset + room]))
            if offset == 0:
                chunk.dtype = array.dtype.name
                chunk.shape.extend(array.shape)
            group.append(chunk)
            room -= len(chunk.data)
            offset += len(chunk.data)
            # Many small tensors must not add up to a huge message of names.
            if room == 0 or len(group) == MAX_TENSORS:
                yield group
                group, room = [], chunk_bytes
            if not data:
                break
    if group:
        yield group


def _little_endian_bytes(array: np.ndarray) -> memoryview:
    flat = np.ascontiguousarray(array).reshape(-1)
    if flat.dtype.byteorder == ">" or (flat.dtype.byteorder == "=" and sys.byteorder == "big"):
        flat = flat.byteswap()
    return flat.view(np.uint8).data


class TensorAssembler:
    """Builds tensors from chunks in the order of `pack_tensors`.

    Args:
        accept: Called with (name, dtype, shape) before a tensor's memory is allocated; raises to refuse it.

    Attributes:
        complete_bytes: Of the tensors that `take` gives.
    """

    def __init__(self, accept: Callable[[str, str, tuple[int, ...]], None] | None = None) -> None:
        self._accept = accept
        self._tensors: dict[str, np.ndarray] = {}
        self._names: set[str] = set()
        self._open: tuple[str, memoryview, int] | None = None
        self.complete_bytes = 0

    def add(self, chunks: Iterable[pb.TensorChunk]) -> None:
        """Takes the chunks of one message.

        Raises:
            WireFormatError: a gap, an overlap, a part without its beginning, an unknown dtype.
        """
        for chunk in chunks:
            name, room, done = self._begin(chunk) if self._open is None else self._continue(chunk)
            end = done + len(chunk.data)
            if end > len(room):
                raise WireFormatError(
                    f"tensor '{name}': got {end} bytes, its shape and dtype have {len(room)}"
                )
            room[done:end] = chunk.data
            self._open = None if end == len(room) else (name, room, end)
            self.complete_bytes += end if self._open is None else 0

    def _begin(self, chunk: pb.TensorChunk) -> tuple[str, memoryview, int]:
        name, shape = str(chunk.name), tuple(chunk.shape)
        if chunk.offset:
            raise WireFormatError(f"tensor '{name}' begins at byte {chunk.offset} instead of 0")
        if name in self._names:
            raise WireFormatError(f"tensor '{name}' came twice")
        if any(size < 0 for size in shape):
            raise WireFormatError(f"tensor '{name}': shape {shape} has a negative dimension")
        dtype = dtype_named(chunk.dtype)
        if self._accept is not None:
            self._accept(name, str(chunk.dtype), shape)
        array = np.empty(math.prod(shape), dtype)
        self._names.add(name)
        self._tensors[name] = array.reshape(shape)
        return name, array.view(np.uint8).data, 0

    def _continue(self, chunk: pb.TensorChunk) -> tuple[str, memoryview, int]:
        assert self._open is not None
        name, room, done = self._open
        if chunk.name != name or chunk.offset != done:
            raise WireFormatError(
                f"expected byte {done} of tensor '{name}', got byte {chunk.offset} of '{chunk.name}'"
            )
        return name, room, done

    def take(self) -> dict[str, np.ndarray]:
        """The tensors that have arrived whole since the last call, by name, in the order of their arrival."""
        coming = self._open[0] if self._open is not None else None
        taken = {name: array for name, array in self._tensors.items() if name != coming}
        self._tensors = {name: array for name, array in self._tensors.items() if name == coming}
        self.complete_bytes = 0
        if sys.byteorder == "big":
            return {name: array.byteswap() for name, array in taken.items()}
        return taken

    def finish(self) -> dict[str, np.ndarray]:
        """The tensors that nobody has taken, by name, in the order of their arrival.

        Raises:
            WireFormatError: the last tensor is not complete.
        """
        if self._open is not None:
            name, room, done = self._open
            raise WireFormatError(f"tensor '{name}' ended after {done} of {len(room)} bytes")
        return self.take()
