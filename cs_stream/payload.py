"""Batches as buffers: the sender's arrays, the system's ring of slots, and the digest of both."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import xxhash
from numpy.typing import NDArray

from cs_stream.errors import BatchShapeError, LayoutError
from cs_stream.layout import ALIGNMENT_BYTES, BatchLayout, Field, padded_size

Array = NDArray[Any]


def conform(layout: BatchLayout, batch: object, what: str) -> list[Array]:
    """The batch's arrays as they go on the wire: checked, contiguous, little-endian, else unchanged.

    Args:
        layout: what the program was compiled for.
        batch: a tuple or list of arrays, one a field, in layout order.
        what: names the batch in errors, e.g. `batch 12 of worker 0`.

    Raises:
        BatchShapeError: another number of arrays, another dtype or another shape.
    """
    if not isinstance(batch, tuple | list):
        raise BatchShapeError(
            f"{what}: got a {type(batch).__name__}, expected a tuple of {len(layout.fields)} arrays "
            f"({layout}); the input function must yield a tuple"
        )
    if len(batch) != len(layout.fields):
        raise BatchShapeError(
            f"{what}: got {len(batch)} arrays, expected {len(layout.fields)} ({layout}); "
            "the input function must yield what the program was compiled for"
        )
    return [_conform_field(item, array, what) for item, array in zip(layout.fields, batch, strict=True)]


def _conform_field(item: Field, array: Array, what: str) -> Array:
    array = np.asarray(array)
    if array.shape != item.shape:
        raise BatchShapeError(
            f"{what}: field {item.name!r} has shape {array.shape}, expected {item.shape}: every batch must "
            "have the compiled shape; pass drop_remainder=True to batch() in the input function"
        )
    if array.dtype.newbyteorder("<") != item.numpy_dtype:
        raise BatchShapeError(
            f"{what}: field {item.name!r} has dtype {array.dtype.name}, expected {item.dtype}: convert it in "
            "the input function"
        )
    # Not ascontiguousarray, which makes a rank-0 array rank 1.
    return np.asarray(array, dtype=item.numpy_dtype, order="C")


def byte_view(array: Array) -> memoryview:
    """The bytes of a contiguous array, without a copy."""
    return array.reshape(-1).view(np.uint8).data


def wire_buffers(fields: Sequence[memoryview], padding: memoryview) -> list[memoryview]:
    """Field bytes with padding to 64 bytes behind each, as a scatter/gather list."""
    buffers = []
    for view in fields:
        buffers.append(view)
        missing = padded_size(view.nbytes) - view.nbytes
        if missing:
            buffers.append(padding[:missing])
    return buffers


def digest(fields: Sequence[memoryview]) -> int:
    """xxh3_64 of the fields' bytes in order, padding left out."""
    if len(fields) == 1:
        return xxhash.xxh3_64_intdigest(fields[0])
    state = xxhash.xxh3_64()
    for view in fields:
        state.update(view)
    return state.intdigest()


@dataclass(frozen=True, slots=True)
class Slot:
    """The memory of one batch.

    Attributes:
        fields: the bytes of each field.
        buffers: scatter list of a payload: the fields, and a waste place for the padding behind each.
    """

    fields: list[memoryview]
    buffers: list[memoryview]


class RingMemory:
    """The slots of a run, allocated once.

    For each field and chunk there is one contiguous array of shape (K, *shape), 64-byte aligned.

    Args:
        layout: what a slot holds.
        chunk_batches: K, slots in a chunk.
        chunks: number of chunks.

    Raises:
        LayoutError: the machine does not have that much memory.
    """

    def __init__(self, layout: BatchLayout, chunk_batches: int, chunks: int) -> None:
        self._chunk_batches = chunk_batches
        self._sizes = [item.nbytes for item in layout.fields]
        try:
            self._bytes = [_aligned_rows(chunks, chunk_batches * size) for size in self._sizes]
        except MemoryError:
            total = layout.nbytes * chunk_batches * chunks
            raise LayoutError(
                f"ring memory: got {chunks} chunks of {chunk_batches} batches of {layout.nbytes} bytes, "
                f"{total / 2**30:.1f} GiB, expected what this machine has; use fewer or smaller batches"
            ) from None
        self.chunks = [
            tuple(
                rows[chunk].view(item.numpy_dtype).reshape(chunk_batches, *item.shape)
                for rows, item in zip(self._bytes, layout.fields, strict=True)
            )
            for chunk in range(chunks)
        ]
        # Received padding is never read, so all slots and threads share one place for it.
        self._padding = memoryview(bytearray(ALIGNMENT_BYTES))

    def slot(self, index: int) -> Slot:
        """Where the payload of a batch is received."""
        chunk, row = divmod(index, self._chunk_batches)
        fields = [
            rows[chunk, row * size : (row + 1) * size].data
            for rows, size in zip(self._bytes, self._sizes, strict=True)
        ]
        return Slot(fields, wire_buffers(fields, self._padding))


def _aligned_rows(count: int, size_bytes: int) -> NDArray[np.uint8]:
    """Shape (count, size_bytes), each row starting at a multiple of 64 bytes."""
    stride = padded_size(size_bytes)
    raw = np.empty(count * stride + ALIGNMENT_BYTES, dtype=np.uint8)
    start = -raw.ctypes.data % ALIGNMENT_BYTES
    return raw[start : start + count * stride].reshape(count, stride)[:, :size_bytes]
