"""The state of one run's input on the system: no I/O, no clock, no thread.

The order of the input is fixed over its shards (`cs_stream.order`): position p, the p-th batch of the
training, belongs to one worker, whose own batch number is called `seq`; both count from 0. So the state of
the whole input is one integer, the cursor, and any run with the same number of shards sees the same batches
in the same order.

Positions are taken in order. Slots may be written for the positions from the released frontier up to the
frontier plus the number of slots; the part of that window that belongs to a worker is its credit. Everything
that is received, or taken and not yet released, is therefore inside the window, and no two positions in it
share a slot.

A position after the end of its worker's input, or of its shard's, is a hole. The cursor never stays on a
hole while a batch can still follow: the event that makes holes reachable skips and releases them.
"""

from dataclasses import dataclass, field
from enum import Enum

from cs_stream.batches import BatchLayout
from cs_stream.errors import (
    ChecksumError,
    EndOfInputError,
    LayoutError,
    RefusedError,
    StreamingError,
    WorkerFailedError,
    WorkerLostError,
)
from cs_stream.frames import VERSION
from cs_stream.messages import ErrorCode, Failure, Hello, Welcome
from cs_stream.order import MAX_SHARDS, SCHEDULE_ENTRY_BYTES, InputOrder, InputPosition, OrderDigest


@dataclass(frozen=True)
class RunSpec:
    """The input of a run, as the system opens it.

    Args:
        job_id: The launcher's job; a job has at most one open run.
        token: The job's secret, which every worker must know; not part of `repr`.
        num_workers: Number of workers N.
        layout: Layout of the batches.
        input_digest: Digest of program and parameters that every worker must state; compared, never
            interpreted.
        first_position: First position of the run, above 0 when it continues an earlier one.
        chunk_batches: K, batches in a chunk; consecutive positions in a chunk are one stacked array.
        chunks: C; the ring holds C * K batches.
        reconnect_s: How long a lost worker may stay away.
        liveness_s: A connection on which nothing is received for this time is lost; workers send pings.
        checksum: Whether batches have a digest if the worker can compute one.
        shards: Number of shards over which the order is defined; None for one a worker.
        first_step: Global step of the first batch; None for `first_position`, from which it differs where
            positions before were holes.
        digest: Order digest of the batches before; empty to start.
        cursors: The next batch of each shard, with the order first-ready; else empty.
        schedule: The shards of the next positions (`InputPosition.schedule`).

    Raises:
        LayoutError: a number out of range.
    """

    job_id: str
    token: str = field(repr=False)
    num_workers: int
    layout: BatchLayout
    input_digest: str
    first_position: int = 0
    chunk_batches: int = 8
    chunks: int = 4
    reconnect_s: float = 60.0
    liveness_s: float = 60.0
    checksum: bool = True
    shards: int | None = None
    first_step: int | None = None
    digest: str = ""
    cursors: tuple[int, ...] = ()
    schedule: bytes = b""

    def __post_init__(self) -> None:
        lowest = {"num_workers": 1, "first_position": 0, "chunk_batches": 1, "chunks": 1, "shards": 1}
        for name, least in lowest.items():
            got = getattr(self, name)
            if got is not None and got < least:
                raise LayoutError(f"{name}: got {got}, expected at least {least}")
        for name in ("num_workers", "shards"):
            got = getattr(self, name)
            if got is not None and got > MAX_SHARDS:
                raise LayoutError(f"{name}: got {got:,}, expected at most {MAX_SHARDS:,}")
        if len(self.schedule) % SCHEDULE_ENTRY_BYTES:
            raise LayoutError(f"schedule: got {len(self.schedule)} bytes, expected an even number")
        if self.liveness_s <= 0:
            raise LayoutError(f"liveness_s: got {self.liveness_s}, expected more than 0")

    @property
    def slots(self) -> int:
        """Number of batches that the ring holds."""
        return self.chunks * self.chunk_batches

    @property
    def order(self) -> InputOrder:
        """The order of the input."""
        return InputOrder(self.num_workers, self.shards or self.num_workers)

    @property
    def place(self) -> InputPosition:
        """The place at which the run begins."""
        shards = self.order.shards
        return InputPosition(shards, self.first_position, self.digest, self.cursors, self.schedule)


class WorkerPhase(Enum):
    """The phase of a worker in the run."""

    ABSENT = "absent"
    """Has never connected."""
    CONNECTED = "connected"
    """Has a connection."""
    LOST = "lost"
    """Had a connection, and may come back until `reconnect_s` has passed."""
    ENDED = "ended"
    """Has sent its whole input."""
    FAILED = "failed"
    """Its input failed; nothing more will come."""


@dataclass(frozen=True, slots=True)
class WorkerStats:
    """A snapshot of a worker.

    Attributes:
        worker: Index.
        phase: Its phase.
        host: Its machine, empty before the first connection.
        pid: Its process, 0 before the first connection.
        connects: Number of accepted connections.
        received: Number of its batches that the run has, counted from the start of its input.
        batches: Number of batches received over its connections in this run.
        size_bytes: Payload bytes of those.
        consumer_wait_s: Time that `take` has waited for it: the worker limits the run.
        credit_wait_s: Time that it was connected without credit: the run limits the worker.
        last_error: Why its last connection ended, unless normally.
        queued: Number of its batches that have arrived and were not taken, holes included.
    """

    worker: int
    phase: WorkerPhase
    host: str
    pid: int
    connects: int
    received: int
    batches: int
    size_bytes: int
    consumer_wait_s: float
    credit_wait_s: float
    last_error: str
    queued: int = 0


@dataclass(frozen=True, slots=True)
class RunStats:
    """A snapshot of a run's input.

    Attributes:
        position: The next position that `take` returns.
        released: Every position below is released.
        slots: Number of batches that the ring holds.
        primed: Whether every worker's first batch has arrived, or it has ended, or waits for a slot.
        workers: One entry a worker, by index.
        next_worker: The worker of the next position.
    """

    position: int
    released: int
    slots: int
    primed: bool
    workers: tuple[WorkerStats, ...]
    next_worker: int = 0


@dataclass(slots=True)
class WorkerEntry:
    """A worker in the state of a run."""

    index: int
    first: int
    received: int
    limit: int
    phase: WorkerPhase = WorkerPhase.ABSENT
    generation: int = 0
    instance: str = ""
    host: str = ""
    pid: int = 0
    connects: int = 0
    batches: int = 0
    size_bytes: int = 0
    corrupted: int = 0
    lost_at_s: float = 0.0
    starved_since_s: float | None = None
    consumer_wait_s: float = 0.0
    credit_wait_s: float = 0.0
    last_error: str = ""
    failure: Failure | None = None

    def __str__(self) -> str:
        if self.phase is WorkerPhase.ABSENT:
            return f"worker {self.index}"
        return f"worker {self.index} (host {self.host}, pid {self.pid})"


class RunState:
    """The state of a run's input. Times are seconds of a monotonic clock, given by the caller.

    Attributes:
        spec: The run.
        position: The cursor, the next position to take.
        released: The frontier; every position below is free.
    """

    def __init__(self, spec: RunSpec, run_id: str) -> None:
        self.spec = spec
        self.run_id = run_id
        self.position = spec.first_position
        self.released = spec.first_position
        self._order = spec.order
        self._done: dict[int, int] = {}
        # Received positions without a batch, whose shards have ended before others of their workers.
        self._holes: set[int] = set()
        self._contents: dict[int, bytes] = {}
        first_step = spec.first_position if spec.first_step is None else spec.first_step
        self._digest = OrderDigest(spec.digest, first_step)
        self._error: StreamingError | None = None
        firsts = [self._order.count_before(index, self.position) for index in range(spec.num_workers)]
        self._workers = [
            WorkerEntry(index, first, first, self._limit(index)) for index, first in enumerate(firsts)
        ]

    def _limit(self, worker: int) -> int:
        return self._order.count_before(worker, self.released + self.spec.slots)

    def slot_of_batch(self, worker: int, seq: int) -> int:
        """Return the slot into which a worker's batch is received."""
        return self._order.position_of(worker, seq) % self.spec.slots

    def slot_of(self, position: int) -> int:
        """Return the slot of a position that `take` has returned."""
        return position % self.spec.slots

    def window(self, worker: int) -> int:
        """Return how many slots a worker has for itself, approximately."""
        return self.spec.slots * self._order.parts_of(worker) // self._order.parts

    def describe(self, worker: int) -> str:
        """Return `worker 1 (host h, pid p)`."""
        return str(self._workers[worker])

    # -- connections -------------------------------------------------------------------------------------

    def refusal(self, hello: Hello) -> Failure | None:
        """Return why this worker is refused, or None.

        The worker has proved that it belongs to the job. All differences are reported together. They also
        end the run, which would wait in vain for that worker, unless another process has its place.
        """
        differences = self._differences(hello)
        if differences:
            served = hello.worker < self.spec.num_workers and self._workers[hello.worker].connects > 0
            if self._error is None and not served:
                name = f"worker {hello.worker} (host {hello.host}, pid {hello.pid})"
                text = f"{name} is refused: {'; '.join(differences)}"
                self._error = RefusedError(text, name, tuple(differences))
            return Failure(ErrorCode.REFUSED, "; ".join(differences))
        worker = self._workers[hello.worker]
        if worker.failure is not None:
            return Failure(ErrorCode.STOPPED, f"{worker}: {worker.failure.text}")
        if self._error is not None:
            return Failure(ErrorCode.STOPPED, str(self._error))
        if hello.run_id == self.run_id and hello.instance != worker.instance:
            return Failure(ErrorCode.REPLACED, f"{worker} took over in the meantime")
        return None

    def _differences(self, hello: Hello) -> list[str]:
        spec = self.spec
        differences = []
        if not hello.protocol_min <= VERSION <= hello.protocol_max:
            differences.append(
                f"protocol: got {hello.protocol_min} to {hello.protocol_max}, expected {VERSION}"
            )
        if hello.num_workers != spec.num_workers:
            differences.append(f"num_workers: got {hello.num_workers}, expected {spec.num_workers}")
        if hello.worker >= spec.num_workers:
            differences.append(f"worker: got index {hello.worker}, expected 0 to {spec.num_workers - 1}")
        layout = spec.layout.difference(hello.layout)
        if layout is not None:
            differences.append(layout)
        if hello.input_digest != spec.input_digest:
            differences.append(f"input_digest: got {hello.input_digest!r}, expected {spec.input_digest!r}")
        return differences

    def connect(self, hello: Hello) -> int:
        """Give the worker's place to the sender of `hello`; return its generation, which fences others."""
        worker = self._workers[hello.worker]
        worker.generation += 1
        worker.connects += 1
        worker.instance, worker.host, worker.pid = hello.instance, hello.host, hello.pid
        if worker.phase is not WorkerPhase.ENDED:
            worker.phase = WorkerPhase.CONNECTED
        worker.starved_since_s = None
        return worker.generation

    def welcome(self, index: int, checksum: bool, now_s: float) -> Welcome:
        """Return the answer to a worker's new connection."""
        worker = self._workers[index]
        self._mark_starved(worker, now_s)
        return Welcome(
            next_seq=worker.received,
            limit=worker.limit,
            ended=worker.phase is WorkerPhase.ENDED,
            checksum=checksum and self.spec.checksum,
            liveness_s=self.spec.liveness_s,
            run_id=self.run_id,
        )

    def commit(self, index: int, generation: int, now_s: float, content: bytes = b"") -> bool:
        """Count the next batch of a worker as received; False if the generation is fenced."""
        worker = self._workers[index]
        if worker.generation != generation:
            return False
        self._store(worker, content)
        worker.received += 1
        worker.batches += 1
        worker.size_bytes += self.spec.layout.nbytes
        worker.corrupted = 0
        self._mark_starved(worker, now_s)
        return True

    def skip(self, index: int, generation: int, now_s: float) -> bool:
        """Count a position of a worker as received without a batch; False if the generation is fenced."""
        worker = self._workers[index]
        if worker.generation != generation:
            return False
        self._store_hole(worker)
        worker.received += 1
        self._mark_starved(worker, now_s)
        self._skip_holes()
        return True

    def _store(self, worker: WorkerEntry, content: bytes) -> None:
        self._contents[self._order.position_of(worker.index, worker.received)] = content

    def _store_hole(self, worker: WorkerEntry) -> None:
        self._holes.add(self._order.position_of(worker.index, worker.received))

    def end(self, index: int, generation: int) -> None:
        """Record that the worker has no more input."""
        worker = self._workers[index]
        if worker.generation == generation:
            worker.phase = WorkerPhase.ENDED
            worker.starved_since_s = None
            self._skip_holes()

    def lose(self, index: int, generation: int, reason: str, now_s: float) -> None:
        """Record that the connection of this generation is gone."""
        worker = self._workers[index]
        if worker.generation != generation:
            return
        self._stop_starving(worker, now_s)
        if worker.phase is WorkerPhase.CONNECTED:
            worker.phase, worker.lost_at_s, worker.last_error = WorkerPhase.LOST, now_s, reason

    def fail(self, index: int, generation: int, failure: Failure) -> None:
        """Record that the worker has reported the failure of its input."""
        worker = self._workers[index]
        if worker.generation == generation:
            worker.phase, worker.failure, worker.last_error = WorkerPhase.FAILED, failure, failure.text

    def record_corruption(self, index: int, text: str) -> bool:
        """Record a corrupted payload of the worker; return whether it is to be resent, or the run fails.

        The run fails if the batch that is sent once more is corrupted too.
        """
        worker = self._workers[index]
        worker.corrupted += 1
        if worker.corrupted > 1 and self._error is None:
            self._error = ChecksumError(
                f"{worker}: {text}, and it arrived corrupted {worker.corrupted} times: check the network "
                f"between {worker.host} and the CS system"
            )
        return self._error is None

    # -- consumer ----------------------------------------------------------------------------------------

    def take(self, limit: int | None = None) -> tuple[int, int] | None:
        """Take the longest received run of positions from the cursor in a chunk: `(first, count)`, or None.

        Args:
            limit: Maximum number of positions.

        Raises:
            EndOfInputError: every worker has ended, and all is taken.
        """
        if self._is_finished():
            raise EndOfInputError(f"the input ended at position {self.position}: all workers have ended")
        chunk = self.spec.chunk_batches
        chunk_end = (self.position // chunk + 1) * chunk
        order = self._order
        # The lowest position from the cursor on that has no batch yet.
        missing = min(
            order.position_of(w.index, max(w.received, order.count_before(w.index, self.position)))
            for w in self._workers
        )
        end = min(chunk_end, missing, *self._holes)
        if limit is not None:
            end = min(end, self.position + limit)
        if end <= self.position:
            return None
        first, self.position = self.position, end
        self._skip_holes()
        return first, end - first

    def add_to_digest(self, first: int, count: int) -> tuple[InputPosition, ...]:
        """Add positions that `take` has returned to the order digest; return the place after each of them."""
        order = self._order
        return tuple(
            InputPosition(
                order.shards,
                position + 1,
                self._digest.add(*order.place_of(position), self._contents.pop(position)),
            )
            for position in range(first, first + count)
        )

    def shards_of(self, first: int) -> bytes:
        """Return the shards of a span where the order is not fixed, as a schedule."""
        return b""

    def _is_finished(self) -> bool:
        return all(
            worker.phase is WorkerPhase.ENDED
            and self._order.position_of(worker.index, worker.received - 1) < self.position
            for worker in self._workers
        )

    def _skip_holes(self) -> None:
        start = self.position
        while True:
            if self.position in self._holes:
                self._holes.remove(self.position)
            else:
                worker = self._workers[self.next_worker()]
                seq = self._order.count_before(worker.index, self.position)
                is_hole = worker.phase is WorkerPhase.ENDED and seq >= worker.received
                if not is_hole or self._is_finished():
                    break
            self.position += 1
        if self.position > start:
            self._release(start, self.position)

    def release(self, first: int, count: int) -> None:
        """Free the slots of taken positions; in any order.

        Raises:
            ValueError: they are not taken, or released already (a bug of the caller).
        """
        overlap = any(start < first + count and first < end for start, end in self._done.items())
        if first < self.released or first + count > self.position or overlap:
            raise ValueError(
                f"release of positions {first} to {first + count - 1}: expected taken and unreleased ones, "
                f"which are in {self.released} to {self.position - 1}"
            )
        self._release(first, first + count)

    def _release(self, first: int, end: int) -> None:
        self._done[first] = end
        while self.released in self._done:
            self.released = self._done.pop(self.released)

    def new_limits(self, now_s: float) -> list[tuple[int, int]]:
        """Return the workers whose credit has grown since the last call, with the new limits."""
        grown = []
        for worker in self._workers:
            limit = self._limit(worker.index)
            if limit > worker.limit:
                worker.limit = limit
                self._stop_starving(worker, now_s)
                grown.append((worker.index, limit))
        return grown

    def next_worker(self) -> int:
        """Return the worker whose batch is at the cursor."""
        return self._order.worker_of(self.position)

    def is_awaited(self, worker: int) -> bool:
        """Return True if a batch of this worker can be the next one."""
        return worker == self.next_worker()

    def check(self, index: int, now_s: float) -> None:
        """Raise if no batch of this worker can come any more.

        Raises:
            WorkerFailedError: its input failed.
            WorkerLostError: it has been gone for longer than `reconnect_s`.
            ChecksumError: the run has failed because of corrupted payloads.
            RefusedError: a worker that the run needs has another input.
        """
        if self._error is not None:
            raise self._error
        worker = self._workers[index]
        if worker.failure is not None:
            raise WorkerFailedError(f"{worker}: {worker.failure.text}", index, worker.failure.detail)
        if worker.phase is WorkerPhase.LOST and now_s >= worker.lost_at_s + self.spec.reconnect_s:
            raise WorkerLostError(
                f"{worker} is gone for {now_s - worker.lost_at_s:.1f} s ({worker.last_error}) and no process "
                f"took its place within {self.spec.reconnect_s:g} s; see the worker's log",
                index,
            )

    def recheck_at_s(self) -> float | None:
        """Return when to `check` the next worker again at the latest; None if only events matter."""
        worker = self._workers[self.next_worker()]
        return worker.lost_at_s + self.spec.reconnect_s if worker.phase is WorkerPhase.LOST else None

    def add_wait(self, index: int, seconds: float) -> None:
        """Add time that the consumer waited for a worker."""
        self._workers[index].consumer_wait_s += seconds

    def stall_text(self, waited_s: float) -> str:
        """Describe for the user why no batch has come for this long."""
        worker = self._workers[self.next_worker()]
        text = (
            f"no batch for position {self.position} within {waited_s:g} s: {worker} is {worker.phase.value}, "
            f"{worker.received - worker.first} batches of it so far; "
        )
        if worker.received >= worker.limit:
            return f"{text}no slot is free for it: release the positions from {self.released} on"
        return f"{text}check that it runs and what its input function waits for"

    # -- statistics --------------------------------------------------------------------------------------

    def stats(self, now_s: float) -> RunStats:
        """Return a snapshot."""
        return RunStats(
            position=self.position,
            released=self.released,
            slots=self.spec.slots,
            primed=all(self._is_primed(worker) for worker in self._workers),
            workers=tuple(self._worker_stats(worker, now_s) for worker in self._workers),
            next_worker=self.next_worker(),
        )

    def missing_workers(self) -> dict[int, str]:
        """Return the workers whose first batch is missing, each with a description and its phase."""
        return {w.index: f"{w} is {w.phase.value}" for w in self._workers if not self._is_primed(w)}

    def _is_primed(self, worker: WorkerEntry) -> bool:
        if worker.phase is WorkerPhase.CONNECTED:
            return worker.received > worker.first or worker.limit <= worker.first
        return worker.phase is WorkerPhase.ENDED

    def _worker_stats(self, worker: WorkerEntry, now_s: float) -> WorkerStats:
        starving_s = 0.0 if worker.starved_since_s is None else now_s - worker.starved_since_s
        return WorkerStats(
            worker=worker.index,
            phase=worker.phase,
            host=worker.host,
            pid=worker.pid,
            connects=worker.connects,
            received=worker.received,
            batches=worker.batches,
            size_bytes=worker.size_bytes,
            consumer_wait_s=worker.consumer_wait_s,
            credit_wait_s=worker.credit_wait_s + starving_s,
            last_error=worker.last_error,
            queued=self._queued(worker),
        )

    def _queued(self, worker: WorkerEntry) -> int:
        return max(0, worker.received - self._order.count_before(worker.index, self.position))

    def _mark_starved(self, worker: WorkerEntry, now_s: float) -> None:
        if worker.received >= worker.limit and worker.phase is WorkerPhase.CONNECTED:
            worker.starved_since_s = now_s

    def _stop_starving(self, worker: WorkerEntry, now_s: float) -> None:
        if worker.starved_since_s is not None:
            worker.credit_wait_s += now_s - worker.starved_since_s
            worker.starved_since_s = None
