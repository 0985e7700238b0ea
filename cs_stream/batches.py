"""Batches: the layout of their fields, their arrays as buffers, and the memory of a ring of slots."""

import contextlib
import errno
import hashlib
import json
import math
import mmap
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import xxhash
from numpy.typing import NDArray

from cs_stream.errors import BatchShapeError, LayoutError
from cs_toolkit.step import TensorSpec, wire_specs

ALIGNMENT_BYTES = 64
MAX_FIELDS = 1024

# numpy knows bfloat16 only while ml_dtypes is imported, and then as a void type.
_EXTENSION_DTYPES = frozenset({"bfloat16"})

Array = NDArray[Any]


def padded_size(size_bytes: int) -> int:
    """Round `size_bytes` up to the wire's alignment of 64 bytes."""
    return -(-size_bytes // ALIGNMENT_BYTES) * ALIGNMENT_BYTES


def _numpy_dtype(name: str) -> np.dtype[np.generic]:
    try:
        dtype = np.dtype(name)
    except (TypeError, ValueError):  # the second for names that numpy takes for a list of fields
        hint = "import ml_dtypes first" if name in _EXTENSION_DTYPES else "use a numpy name such as 'float32'"
        raise LayoutError(f"dtype: got {name!r}, which numpy does not know here; {hint}") from None
    if dtype.kind not in "biufc" and name not in _EXTENSION_DTYPES:
        raise LayoutError(f"dtype: got {name!r}, expected a boolean, integer, float or complex type")
    if dtype.name != name:
        raise LayoutError(f"dtype: got {name!r}, expected its plain name {dtype.name!r}")
    return dtype.newbyteorder("<")


@dataclass(frozen=True)
class Field:
    """An array of a batch.

    Args:
        name: Unique in its layout, for example the program's input name.
        dtype: numpy's plain name (`float32`, `int32`, `bool`, ...); on the wire always little-endian.
        shape: Static shape with the batch dimension first; every size at least 1.

    Raises:
        LayoutError: a dtype without a fixed size of plain numbers, or a size below 1.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    numpy_dtype: np.dtype[np.generic] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if not self.name:
            raise LayoutError("field name: got an empty text, expected a name")
        try:
            object.__setattr__(self, "numpy_dtype", _numpy_dtype(self.dtype))
        except LayoutError as error:
            raise LayoutError(f"field {self.name!r}: {error}") from None
        if any(size < 1 for size in self.shape):
            raise LayoutError(f"field {self.name!r}: shape: got {self.shape}, expected sizes of at least 1")

    @property
    def nbytes(self) -> int:
        """Size of the array, without padding."""
        return math.prod(self.shape) * self.numpy_dtype.itemsize

    def __str__(self) -> str:
        return f"{self.name}: {self.dtype}{list(self.shape)}"


@dataclass(frozen=True)
class BatchLayout:
    """The fields of a batch in wire order, at multiples of 64 bytes.

    Attributes:
        fields: In wire order.
        offsets: Byte offset of each field in a payload.
        nbytes: Size of a payload in bytes, padding included.

    Raises:
        LayoutError: no field, too many fields, or a name twice.
    """

    fields: tuple[Field, ...]
    offsets: tuple[int, ...] = field(init=False, repr=False, compare=False)
    nbytes: int = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        names = [item.name for item in self.fields]
        if not 1 <= len(names) <= MAX_FIELDS:
            raise LayoutError(f"layout: got {len(names)} fields, expected 1 to {MAX_FIELDS}")
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise LayoutError(f"layout: got the field name {twice[0]!r} twice, expected unique names")
        offsets, end = [], 0
        for item in self.fields:
            offsets.append(end)
            end += padded_size(item.nbytes)
        object.__setattr__(self, "offsets", tuple(offsets))
        object.__setattr__(self, "nbytes", end)

    @classmethod
    def of(cls, specs: Iterable[tuple[str, str, Sequence[int]]]) -> "BatchLayout":
        """Make the layout of `(name, dtype, shape)` triples."""
        return cls(tuple(Field(name, dtype, tuple(shape)) for name, dtype, shape in specs))

    @classmethod
    def of_step(cls, inputs: tuple[TensorSpec, ...]) -> "BatchLayout":
        """Make the layout of a step's batches: its inputs in the types that the device computes in."""
        return cls(tuple(Field(spec.name, spec.dtype, spec.shape) for spec in wire_specs(inputs)))

    def to_json(self) -> list[list[object]]:
        """Return the JSON form: `[[name, dtype, [sizes]], ...]`."""
        return [[item.name, item.dtype, list(item.shape)] for item in self.fields]

    @classmethod
    def from_json(cls, value: object) -> "BatchLayout":
        """Make the layout from its JSON form.

        Raises:
            LayoutError: the value is not of that form.
        """
        if not isinstance(value, list) or not all(_is_field_json(item) for item in value):
            raise LayoutError(f"layout: got {_short(value)}, expected a list of [name, dtype, [sizes]]")
        return cls.of((name, dtype, shape) for name, dtype, shape in value)

    @property
    def digest(self) -> str:
        """SHA-256 of the JSON form, as 64 hex digits."""
        return hashlib.sha256(json.dumps(self.to_json(), separators=(",", ":")).encode()).hexdigest()

    def difference(self, other: object) -> str | None:
        """Describe how the JSON form `other` differs from this layout; None if they are equal."""
        # Compared as JSON, so that a dtype or form unknown here is reported like any other difference.
        if other == self.to_json():
            return None
        if not isinstance(other, list) or not all(_is_field_json(item) for item in other):
            return f"layout: got {_short(other)}, expected {self}"
        if len(other) != len(self.fields):
            return f"layout: got {len(other)} fields, expected {len(self.fields)} ({self})"
        parts = [
            f"layout: field {index}: got {_short(f'{name}: {dtype}{shape}')}, expected {str(mine)!r}"
            for index, ((name, dtype, shape), mine) in enumerate(zip(other, self.fields, strict=True))
            if [name, dtype, shape] != [mine.name, mine.dtype, list(mine.shape)]
        ]
        return "; ".join(parts)

    def __str__(self) -> str:
        return ", ".join(str(item) for item in self.fields)


def _is_field_json(item: object) -> bool:
    return (
        isinstance(item, list)
        and len(item) == 3
        and isinstance(item[0], str)
        and isinstance(item[1], str)
        and isinstance(item[2], list)
        and all(type(size) is int for size in item[2])
    )


def _short(value: object, limit: int = 200) -> str:
    try:
        text = repr(value)
    except RecursionError:
        text = "a deeply nested value"
    return text if len(text) <= limit else text[:limit] + "..."


def conform(layout: BatchLayout, batch: object, what: str) -> list[Array]:
    """Convert a batch to the arrays of the wire: checked, contiguous, little-endian, without needless copies.

    Args:
        layout: Layout that the program was compiled for.
        batch: A tuple or list of arrays, one a field, in layout order.
        what: Name of the batch in errors, for example `batch 12 of worker 0`.

    Raises:
        BatchShapeError: another number of arrays, another dtype or another shape.
    """
    if not isinstance(batch, (tuple, list)):
        raise BatchShapeError(
            f"{what}: got a {type(batch).__name__}, expected a tuple of {len(layout.fields)} arrays "
            f"({layout}); the input function must yield a tuple"
        )
    if len(batch) != len(layout.fields):
        raise BatchShapeError(
            f"{what}: got {len(batch)} arrays, expected {len(layout.fields)} ({layout}); "
            "the input function must yield the fields that the program was compiled for"
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
    """Return the bytes of a contiguous array, without a copy."""
    # Three times as fast as views of arrays, of which each batch needs several.
    try:
        return array.data.cast("B")
    except ValueError:  # a dtype that memoryviews do not know: bfloat16
        return array.reshape(-1).view(np.uint8).data


def wire_buffers(fields: Sequence[memoryview], padding: memoryview) -> list[memoryview]:
    """Return a scatter/gather list of the fields, each followed by its padding to 64 bytes."""
    buffers = []
    for view in fields:
        buffers.append(view)
        if missing := -view.nbytes % ALIGNMENT_BYTES:
            buffers.append(padding[:missing])
    return buffers


def content_digest(fields: Iterable[memoryview]) -> bytes:
    """Return 16 bytes that identify the fields' content, padding excluded; not against an attacker."""
    # 110 GB/s on cached memory and 35 otherwise, where AES-GMAC, with its work for a secret, does 28.
    digest = xxhash.xxh3_128()
    for each in fields:
        digest.update(each)
    return digest.digest()


@dataclass(slots=True)
class Slot:
    """The memory of a batch.

    Attributes:
        fields: The bytes of each field.
        buffers: Scatter list of a payload: the fields, each followed by a shared buffer for its padding.
        content: `content_digest` of the batch that has been received; empty without digests.
    """

    fields: list[memoryview]
    buffers: list[memoryview]
    content: bytes = b""


class RingMemory:
    """The slots of a run, allocated once, in memory that other processes can map.

    For each field and chunk there is a contiguous array of shape (K, *shape), 64-byte aligned.

    Args:
        layout: Layout of the batches.
        chunk_batches: K, the number of slots in a chunk.
        chunks: Number of chunks.
        descriptor: Descriptor of the memory of a ring of the same layout and size; None allocates it.

    Attributes:
        layout, chunk_batches: As given.
        chunks: The arrays of each chunk, one a field.
        descriptor: Descriptor of the memory.

    Raises:
        LayoutError: the machine does not have that much memory.
    """

    def __init__(
        self, layout: BatchLayout, chunk_batches: int, chunks: int, descriptor: int | None = None
    ) -> None:
        self.layout, self.chunk_batches = layout, chunk_batches
        self._sizes = [item.nbytes for item in layout.fields]
        strides = [padded_size(chunk_batches * size) for size in self._sizes]
        total = chunks * sum(strides)
        try:
            self.descriptor, memory = _map_shared(total, descriptor)
        except (MemoryError, OSError, OverflowError):
            raise LayoutError(
                f"ring memory: got {chunks} chunks of {chunk_batches} batches of {layout.nbytes} bytes, "
                f"{total / 2**30:.1f} GiB, which this machine does not have; use fewer or smaller batches"
            ) from None
        self._bytes, end = [], 0
        for size, stride in zip(self._sizes, strides, strict=True):
            rows = memory[end : end + chunks * stride].reshape(chunks, stride)
            self._bytes.append(rows[:, : chunk_batches * size])
            end += chunks * stride
        self.chunks = [
            tuple(
                rows[chunk].view(item.numpy_dtype).reshape(chunk_batches, *item.shape)
                for rows, item in zip(self._bytes, layout.fields, strict=True)
            )
            for chunk in range(chunks)
        ]
        # Received padding is never read, so all slots and threads share a buffer for it.
        self._padding = memoryview(bytearray(ALIGNMENT_BYTES))

    def slot(self, index: int) -> Slot:
        """Return the memory into which a batch is received."""
        chunk, row = divmod(index, self.chunk_batches)
        fields = [
            rows[chunk, row * size : (row + 1) * size].data
            for rows, size in zip(self._bytes, self._sizes, strict=True)
        ]
        return Slot(fields, wire_buffers(fields, self._padding))

    def close(self) -> None:
        """Close the memory; it is unmapped with the last array of a chunk."""
        os.close(self.descriptor)
        self._bytes, self.chunks = [], []


def use_huge_pages(memory: mmap.mmap) -> None:
    """Ask the kernel for huge pages, which it has for shared memory if `shmem_enabled` is `advise`."""
    # First touches of 64 MiB took 2.7 ms of a worker's 6.7 ms, and take 1.0 ms in huge pages.
    with contextlib.suppress(OSError):  # a kernel without them
        memory.madvise(mmap.MADV_HUGEPAGE)


def _map_shared(nbytes: int, descriptor: int | None) -> tuple[int, NDArray[np.uint8]]:
    """Map anonymous shared memory, and return its descriptor with it."""
    if nbytes > os.sysconf("SC_PHYS_PAGES") * mmap.PAGESIZE:
        raise MemoryError  # the kernel would promise it
    own = os.memfd_create("cs_ring", os.MFD_CLOEXEC) if descriptor is None else descriptor
    try:
        if descriptor is None:
            os.ftruncate(own, nbytes)
        elif os.fstat(own).st_size != nbytes:
            raise OSError(errno.EINVAL, "the memory of another ring")
        memory = mmap.mmap(own, nbytes)
        use_huge_pages(memory)
        return own, np.frombuffer(memory, np.uint8)
    except OSError:
        os.close(own)
        raise
