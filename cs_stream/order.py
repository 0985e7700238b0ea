"""The order of an input over shards, and the share of each worker: arithmetic only.

Position p (the p-th batch of a training run) is batch `p // V` of shard `p % V`. The number of shards V stays
the same for a training run; the number of workers N may change. With more workers than shards, each shard
is dealt to several workers, in parts: a part has every k-th batch of its shard. The V * k parts are dealt to
the workers in rotation, so every part of the input has one reader, and the workers together read every batch
once. All numbers count from 0.

With the order first-ready, the system takes the first batch that is ready. The order is then known only
afterwards, and the place in the input is a cursor for each shard. A worker still reads its shards in a fixed
order, the one with the lowest cursor first. A schedule, the shards of all steps as an earlier run has taken
them, replays such an order.
"""

import array
import heapq
import struct
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from itertools import count

# Shards have numbers of 16 bits in a schedule, and their count is such a number, too.
SCHEDULE_ENTRY_BYTES = 2
MAX_SHARDS = (1 << 16) - 1

_DIGEST_BYTES = 16
_LINK = struct.Struct("<QQQ")


@dataclass(frozen=True, slots=True)
class Part:
    """A part of the input that one worker reads: batches `first`, `first + stride`, ... of a shard."""

    shard: int
    first: int
    stride: int


@dataclass(frozen=True, slots=True)
class InputOrder:
    """The order of an input over `shards`, read by `workers`.

    Attributes:
        stride: Number of parts of a shard.
        parts: Number of parts of all shards; the position modulo it is the number of a part.

    Raises:
        ValueError: a number below 1.
    """

    workers: int
    shards: int
    # Not properties: every batch asks for them several times.
    stride: int = field(init=False, repr=False, compare=False)
    parts: int = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if self.workers < 1 or self.shards < 1:
            raise ValueError(f"got {self.workers} workers and {self.shards} shards, expected at least 1")
        object.__setattr__(self, "stride", -(-self.workers // self.shards))
        object.__setattr__(self, "parts", self.shards * self.stride)

    def parts_of(self, worker: int) -> int:
        """Return how many parts a worker reads, at least 1."""
        return -(-(self.parts - worker) // self.workers)

    def worker_of(self, position: int) -> int:
        """Return the worker that reads a position."""
        return position % self.parts % self.workers

    def position_of(self, worker: int, seq: int) -> int:
        """Return the position of a worker's batch, where `seq` counts its batches from position 0 on."""
        turn, part = divmod(seq, self.parts_of(worker))
        return turn * self.parts + part * self.workers + worker

    def count_before(self, worker: int, position: int) -> int:
        """Return how many positions below `position` belong to `worker`.

        This is the first seq that a worker sends in a run resumed at `position`. With the first position that
        has no free slot, it is the seq up to which (exclusive) the worker has credit.
        """
        turn, rest = divmod(position, self.parts)
        return turn * self.parts_of(worker) + max(0, -(-(rest - worker) // self.workers))

    def place_of(self, position: int) -> tuple[int, int]:
        """Return the shard of a position, and the number of its batch in the shard."""
        return position % self.shards, position // self.shards

    def places_of(self, worker: int, seq: int) -> Iterator[tuple[int, int]]:
        """Yield the places of a worker's batches from `seq` on: shard, and number of the batch in it."""
        return (self.place_of(self.position_of(worker, number)) for number in count(seq))

    def share(self, worker: int, position: int) -> list[Part]:
        """Return the parts of a worker from `position` on, in the order of their first positions."""
        found = []
        for part in range(worker, self.parts, self.workers):
            first = position + (part - position) % self.parts
            shard, batch = self.place_of(first)
            found.append((first, Part(shard, batch, self.stride)))
        return [part for _, part in sorted(found, key=lambda pair: pair[0])]


@dataclass(frozen=True, slots=True)
class InputPosition:
    """A place in the order of an input, as a checkpoint records it.

    Attributes:
        shards: Number of shards over which the order is defined.
        position: The next position.
        digest: Digest of the batches before it, see `OrderDigest`; empty if they are unknown.
        cursors: With the order first-ready, the next batch of each shard; else empty.
        schedule: The shards of the next positions, 16 bits each (`pack_schedule`), to replay a first-ready
            order; empty where batches are taken as they come.
    """

    shards: int
    position: int
    digest: str = ""
    cursors: tuple[int, ...] = ()
    schedule: bytes = b""

    @property
    def is_first_ready(self) -> bool:
        """True if the order is not fixed in advance."""
        return bool(self.cursors)

    def places_of(self, worker: int, workers: int) -> Iterator[tuple[int, int]]:
        """Yield shard and number of a worker's batches from here on, in a first-ready order."""
        cursors = {shard: self.cursors[shard] for shard in range(worker, self.shards, workers)}
        for shard in unpack_schedule(self.schedule):
            if shard in cursors:
                yield shard, cursors[shard]
                cursors[shard] += 1
        heap = [(batch, shard) for shard, batch in cursors.items()]
        heapq.heapify(heap)
        while True:
            batch, shard = heap[0]
            yield shard, batch
            heapq.heapreplace(heap, (batch + 1, shard))


START = InputPosition(1, 0)


def even_cursors(shards: int, position: int) -> tuple[int, ...]:
    """Return the next batch of each shard at a position of the fixed order."""
    order = InputOrder(shards, shards)
    return tuple(order.count_before(shard, position) for shard in range(shards))


def pack_schedule(shards: Sequence[int]) -> bytes:
    """Return the shards of consecutive steps as little-endian numbers of 16 bits."""
    packed = array.array("H", shards)
    if sys.byteorder == "big":
        packed.byteswap()
    return packed.tobytes()


def unpack_schedule(packed: bytes) -> Sequence[int]:
    """Return the shards of a schedule."""
    found = array.array("H")
    found.frombytes(packed)
    if sys.byteorder == "big":
        found.byteswap()
    return found


class OrderDigest:
    """A digest of the batches that a training has used, in their order.

    It is a chain, so its value is its whole state: a run that resumes continues with the value of the
    checkpoint. A link has the step, the shard, the number of the batch in the shard, and the batch's content.

    Args:
        value: Value to continue with; empty to start.
        step: Number of the next step.
    """

    def __init__(self, value: str, step: int) -> None:
        self.value = value
        self._step = step

    def add(self, shard: int, batch: int, content: bytes) -> str:
        """Add the batch of the next step, and return the value after it."""
        link = _LINK.pack(self._step, shard, batch) + content
        self.value = blake2b(self.value.encode() + link, digest_size=_DIGEST_BYTES).hexdigest()
        self._step += 1
        return self.value
