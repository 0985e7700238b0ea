"""Decodes chunks of HDF5's LZ4 filter, where its plugin is not loaded.

The form of a chunk: its size in 8 bytes, the size of a block in 4, then each block behind its own size in 4,
all big-endian; a block that is as large as its content is not compressed. The form of a block is LZ4's
(https://github.com/lz4/lz4/blob/dev/doc/lz4_Block_format.md).
"""

from __future__ import annotations

import struct

FILTER = 32004
"""Number of the filter in HDF5's registry."""

_SHORTEST_MATCH = 4


def decode_chunk(chunk: bytes) -> bytes:
    """The content of a chunk.

    Raises:
        ValueError: the chunk is damaged.
    """
    try:
        size, block_size = struct.unpack_from(">QI", chunk)
        if not block_size:
            raise ValueError("the chunk has blocks of 0 bytes")
        found, position = bytearray(), 12
        while len(found) < size:
            (length,) = struct.unpack_from(">I", chunk, position)
            block = chunk[position + 4 : position + 4 + length]
            position += 4 + length
            content = min(block_size, size - len(found))
            found += block if length == content else _decode_block(block)
    except (struct.error, IndexError) as error:
        raise ValueError("the chunk ends too early") from error
    if len(found) != size:
        raise ValueError(f"the chunk holds {len(found)} bytes, expected {size}")
    return bytes(found)


def _decode_block(block: bytes) -> bytearray:
    out, i = bytearray(), 0
    if not block:
        raise ValueError("a block is empty")
    while True:
        token = block[i]
        literals, i = _length(block, i + 1, token >> 4)
        out += block[i : i + literals]
        i += literals
        if i >= len(block):
            return out
        distance = block[i] | block[i + 1] << 8
        matched, i = _length(block, i + 2, token & 15)
        matched += _SHORTEST_MATCH
        if not 0 < distance <= len(out):
            raise ValueError(f"a match begins {distance} bytes back, after {len(out)} bytes")
        start = len(out) - distance
        piece = out[start : start + matched]  # it repeats itself where it reaches its own end
        out += (piece * (matched // len(piece) + 1))[:matched]


def _length(block: bytes, i: int, nibble: int) -> tuple[int, int]:
    length = nibble
    if nibble == 15:
        while True:
            length += block[i]
            i += 1
            if block[i - 1] != 255:
                break
    return length, i
