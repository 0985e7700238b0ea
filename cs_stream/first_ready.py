"""The state of one run's input whose batches are taken in the order in which they are ready.

Each worker has its own slots, because the position of a batch is known only when it is taken: batch `seq` of
a worker is in slot `seq % q` of its q slots. Batches of a worker are taken in order. With a schedule, the
next batch is that of the shard which the schedule names, whatever else is ready. Batches that the schedule
names and that do not exist, because the input is shorter than that of the run which has logged it, are left
out, as holes are in the fixed order.
"""

from collections import deque
from dataclasses import dataclass

from cs_stream.errors import EndOfInputError, LayoutError
from cs_stream.order import InputPosition, pack_schedule, unpack_schedule
from cs_stream.run_state import RunSpec, RunState, WorkerEntry, WorkerPhase


def make_state(spec: RunSpec, run_id: str) -> RunState:
    """Make the state of a run's input, for its order."""
    return FirstReadyState(spec, run_id) if spec.cursors else RunState(spec, run_id)


@dataclass(frozen=True, slots=True)
class _Batch:
    """A received batch that is not taken."""

    seq: int
    shard: int
    number: int
    content: bytes


class FirstReadyState(RunState):
    """The state of a run's input in the order first-ready.

    Raises:
        LayoutError: there are more workers than slots, or than shards.
    """

    def __init__(self, spec: RunSpec, run_id: str) -> None:
        workers, shards = spec.num_workers, len(spec.cursors)
        if workers > min(spec.slots, shards) or shards != spec.order.shards:
            raise LayoutError(
                f"num_workers: got {workers}, expected at most {min(spec.slots, shards)} with {spec.slots} "
                f"slots and {shards} shards in the order first-ready"
            )
        self._quota = spec.slots // workers
        # By worker: batches whose slots are free again, and those released out of order.
        self._freed = [0] * workers
        self._freed_later: list[set[int]] = [set() for _ in range(workers)]
        self._ready: list[deque[_Batch]] = [deque() for _ in range(workers)]
        # The workers of the batches that are ready, in the order of their arrival.
        self._arrivals: deque[int] = deque()
        self._cursors = list(spec.cursors)
        self._schedule = deque(unpack_schedule(spec.schedule))
        # By first position: the worker and the batches of a span that is taken and not released.
        self._taken: dict[int, tuple[int, list[_Batch]]] = {}
        super().__init__(spec, run_id)
        self._places = [spec.place.places_of(worker, workers) for worker in range(workers)]
        self._workers = [WorkerEntry(index, 0, 0, self._quota) for index in range(workers)]

    def _limit(self, worker: int) -> int:
        return self._freed[worker] + self._quota

    def slot_of_batch(self, worker: int, seq: int) -> int:
        """Return the slot into which a worker's batch is received."""
        return worker * self._quota + seq % self._quota

    def slot_of(self, position: int) -> int:
        """Return the slot of the first position of a span."""
        worker, batches = self._taken[position]
        return self.slot_of_batch(worker, batches[0].seq)

    def window(self, worker: int) -> int:
        """Return how many slots a worker has for itself."""
        return self._quota

    def _store(self, worker: WorkerEntry, content: bytes) -> None:
        batch = _Batch(worker.received, *next(self._places[worker.index]), content)
        self._ready[worker.index].append(batch)
        self._arrivals.append(worker.index)

    def _store_hole(self, worker: WorkerEntry) -> None:
        next(self._places[worker.index])
        # Its entry is the first one of the worker after those of its batches that are ready.
        ahead = len(self._ready[worker.index])
        for index, shard in enumerate(self._schedule):
            if shard % self.spec.num_workers == worker.index:
                if not ahead:
                    del self._schedule[index]
                    break
                ahead -= 1
        self._free(worker.index, [worker.received])

    def take(self, limit: int | None = None) -> tuple[int, int] | None:
        """Take the next batch, and those of the same worker that follow it in order and in the chunk.

        Raises:
            EndOfInputError: every worker has ended, and all is taken.
        """
        if self._is_finished():
            raise EndOfInputError(f"the input ended at position {self.position}: all workers have ended")
        while self._schedule and self._is_over(self._schedule[0] % self.spec.num_workers):
            self._schedule.popleft()
        worker = self._next_ready(0)
        if worker is None:
            return None
        batches: list[_Batch] = []
        while self._next_ready(len(batches)) == worker and len(batches) != limit:
            batch = self._ready[worker][len(batches)]
            if batches and (batch.seq != batches[-1].seq + 1 or not self._continues(worker, batch.seq)):
                break
            batches.append(batch)
        first = self.position
        for _ in batches:
            self._ready[worker].popleft()
            self._arrivals.remove(worker)
            if self._schedule:
                self._schedule.popleft()
        self._taken[first] = worker, batches
        self.position += len(batches)
        return first, len(batches)

    def _next_ready(self, ahead: int) -> int | None:
        """Return the worker of the batch to take after `ahead` batches of a worker; None if it is missing."""
        if ahead < len(self._schedule):
            worker = self._schedule[ahead] % self.spec.num_workers
            return worker if len(self._ready[worker]) > ahead else None
        return self._arrivals[ahead] if ahead < len(self._arrivals) else None

    def _continues(self, worker: int, seq: int) -> bool:
        """Return True if a batch is in the slot after that of the batch before, in the same chunk."""
        slot = self.slot_of_batch(worker, seq)
        return seq % self._quota != 0 and slot % self.spec.chunk_batches != 0

    def add_to_digest(self, first: int, count: int) -> tuple[InputPosition, ...]:
        """Add a span to the order digest; return the place after each of its positions."""
        places = []
        for position, batch in enumerate(self._taken[first][1], first + 1):
            self._cursors[batch.shard] = batch.number + 1
            digest = self._digest.add(batch.shard, batch.number, batch.content)
            places.append(InputPosition(len(self._cursors), position, digest, tuple(self._cursors)))
        return tuple(places)

    def shards_of(self, first: int) -> bytes:
        """Return the shards of a span, as a schedule."""
        return pack_schedule([batch.shard for batch in self._taken[first][1]])

    def release(self, first: int, count: int) -> None:
        """Free the slots of a span, in any order of spans.

        Raises:
            ValueError: it is not taken, or released already (a bug of the caller).
        """
        worker, batches = self._taken.get(first, (0, []))
        if len(batches) != count:
            raise ValueError(
                f"release of positions {first} to {first + count - 1}: expected a span that was taken and is "
                "not released"
            )
        del self._taken[first]
        self._free(worker, [batch.seq for batch in batches])
        self.released = min(self._taken, default=self.position)

    def _free(self, worker: int, seqs: list[int]) -> None:
        later = self._freed_later[worker]
        later.update(seqs)
        while self._freed[worker] in later:
            later.remove(self._freed[worker])
            self._freed[worker] += 1

    def _is_over(self, worker: int) -> bool:
        """Return True if no batch of a worker is left to take."""
        return self._workers[worker].phase is WorkerPhase.ENDED and not self._ready[worker]

    def _is_finished(self) -> bool:
        ended = all(worker.phase is WorkerPhase.ENDED for worker in self._workers)
        return ended and not self._arrivals

    def _skip_holes(self) -> None:
        pass

    def next_worker(self) -> int:
        """Return the worker of the next position in the schedule, else the one with the fewest batches."""
        if self._schedule:
            return self._schedule[0] % self.spec.num_workers
        missing = [worker for worker in self._workers if worker.phase is not WorkerPhase.ENDED]
        return min(missing or self._workers, key=lambda worker: worker.received).index

    def is_awaited(self, worker: int) -> bool:
        """Return True: any batch can be the next one."""
        return True

    def check(self, index: int, now_s: float) -> None:
        """Raise if no batch of any worker can come any more: the run needs the batches of all.

        Raises: as `RunState.check`.
        """
        for worker in self._workers:
            super().check(worker.index, now_s)

    def recheck_at_s(self) -> float | None:
        """Return when to `check` again at the latest; None if only events matter."""
        lost = [worker.lost_at_s for worker in self._workers if worker.phase is WorkerPhase.LOST]
        return min(lost) + self.spec.reconnect_s if lost else None

    def _queued(self, worker: WorkerEntry) -> int:
        return len(self._ready[worker.index])
