"""The batches of a run, between the connections that fill the slots and the engine that takes them."""

import logging
import threading
import time
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from cs_stream.batches import Array, RingMemory, Slot
from cs_stream.errors import RingClosedError, StallError
from cs_stream.first_ready import make_state
from cs_stream.link import ServerLink
from cs_stream.messages import ErrorCode, Failure, Hello
from cs_stream.order import InputPosition
from cs_stream.run_state import RunSpec, RunStats
from cs_toolkit.spans import SpanRing

_log = logging.getLogger(__name__)

# How long close() waits for workers to disconnect after BYE before it aborts their connections.
_CLOSE_S = 3.0


@dataclass(frozen=True, slots=True, eq=False)
class ReadySpan:
    """Consecutive positions whose batches have arrived, all in one chunk.

    Attributes:
        chunk_index: Index of the chunk in the ring.
        chunk_arrays: The chunk's arrays, one a field, of shape (K, *field shape), contiguous and 64-byte
            aligned. Views of the ring's memory: rows outside of this span change at any time, its own rows
            not before `BatchRing.release`.
        offset: Row of the first position.
        count: Number of positions, at least 1.
        first_position: The first position.
        places: The place in the input after each position.
        shards: With the order first-ready, the shards of the positions, as a schedule (`pack_schedule`).
    """

    chunk_index: int
    chunk_arrays: tuple[Array, ...]
    offset: int
    count: int
    first_position: int
    places: tuple[InputPosition, ...]
    shards: bytes = b""

    @property
    def arrays(self) -> tuple[Array, ...]:
        """The span's own rows, one array of shape (count, *field shape) a field; views."""
        return tuple(array[self.offset : self.offset + self.count] for array in self.chunk_arrays)


@dataclass(frozen=True, slots=True)
class RunEnd:
    """The end of a run's input.

    Attributes:
        reason: Why the run was stopped; None after a normal end.
    """

    reason: str | None

    @property
    def failure(self) -> Failure | None:
        """The answer to workers; None is BYE."""
        return None if self.reason is None else Failure(ErrorCode.STOPPED, f"run stopped: {self.reason}")


class BatchRing:
    """The input of an open run; made by `Receiver.open_run`.

    A single thread takes and releases. Closing, and reading statistics, is thread-safe.

    Attributes:
        spec: The run as it was opened.
        memory: The memory of the batches, until `close`.
        run_id: Random name of this opening.
    """

    def __init__(
        self,
        spec: RunSpec,
        on_close: Callable[["BatchRing", RunEnd], None],
        spans: SpanRing | None = None,
        shares_memory: bool = True,
    ) -> None:
        self._shares_memory = shares_memory
        self.spec = spec
        self._spans = spans
        self.run_id = uuid.uuid4().hex
        self._on_close = on_close
        self._state = make_state(spec, self.run_id)
        self.memory = RingMemory(spec.layout, spec.chunk_batches, spec.chunks)
        self._slots = [self.memory.slot(index) for index in range(spec.slots)]
        self._links: dict[int, ServerLink] = {}
        self._end: RunEnd | None = None
        self._priming = False
        # Guards all of the above; notified whenever the state has changed.
        self._changed = threading.Condition()

    # -- consumer ----------------------------------------------------------------------------------------

    @property
    def position(self) -> int:
        """The next position that `take` returns: the whole state of the input, to be saved with a checkpoint.

        It counts the holes of workers that ended early, so it can be ahead of the number of batches taken.
        """
        with self._changed:
            return self._state.position

    def take(self, timeout_s: float | None = None, limit: int | None = None) -> ReadySpan:
        """Take the longest run of received positions from the cursor within a chunk; wait for the first.

        Positions of workers that have ended are left out: a span ends before such a hole. Several spans may
        be held at a time; each is returned with `release`.

        Args:
            timeout_s: How long to wait for a batch; None waits as long as its worker may still send it.
            limit: Maximum number of positions, at least 1; None for no limit.

        Raises:
            EndOfInputError: every worker has ended, and everything is taken.
            WorkerLostError: the worker of the next position has been gone for longer than `reconnect_s`.
            WorkerFailedError: the input of that worker failed; the batches that it had sent before are taken
                first, so that a run fails at the same position each time.
            ChecksumError: batches of one worker arrived corrupted twice.
            StallError: nothing came within `timeout_s`; names the worker that has no batch.
            RingClosedError: the ring is or was closed.
        """
        deadline_s = None if timeout_s is None else time.monotonic() + timeout_s
        with self._changed:
            while True:
                self._check_open()
                taken = self._state.take(limit)
                if taken is not None:
                    first, count = taken
                    chunk, offset = divmod(self._state.slot_of(first), self.spec.chunk_batches)
                    places = self._state.add_to_digest(first, count)
                    arrays, shards = self.memory.chunks[chunk], self._state.shards_of(first)
                    return ReadySpan(chunk, arrays, offset, count, first, places, shards)
                now_s = time.monotonic()
                worker = self._state.next_worker()
                self._state.check(worker, now_s)
                if deadline_s is not None and timeout_s is not None and now_s >= deadline_s:
                    raise StallError(self._state.stall_text(timeout_s), worker)
                limits = [limit for limit in (deadline_s, self._state.recheck_at_s()) if limit is not None]
                self._changed.wait(max(0.0, min(limits) - now_s) if limits else None)
                self._state.add_wait(worker, time.monotonic() - now_s)

    def release(self, span: ReadySpan) -> None:
        """Return the span's slots, which gives the workers credit; spans can be released in any order.

        Raises:
            ValueError: the span was released before.
        """
        with self._changed:
            self._state.release(span.first_position, span.count)
            granted = self._grant()
        _flush(granted)

    def wait_primed(
        self, timeout_s: float, on_progress: Callable[[RunStats], None] | None = None, every_s: float = 1.0
    ) -> None:
        """Wait until every worker has connected and its first batch has arrived.

        A worker that has no batch to send (a finite input that is over) or no free slot yet counts as ready.

        Args:
            timeout_s: How long to wait.
            on_progress: Called with a snapshot at the start, at every change and every `every_s` seconds.
            every_s: Interval of calls without change.

        Raises:
            StallError: workers are missing; the text names each with its phase.
            WorkerFailedError, WorkerLostError, ChecksumError, RingClosedError: as in `take`.
        """
        deadline_s = time.monotonic() + timeout_s
        while True:
            stats = self.stats()
            if on_progress is not None:
                on_progress(stats)
            if stats.primed:
                return
            with self._changed:
                self._check_open()
                now_s = time.monotonic()
                for worker in range(self.spec.num_workers):
                    self._state.check(worker, now_s)
                missing = self._state.missing_workers()
                if missing and now_s >= deadline_s:
                    raise StallError(
                        f"not ready within {timeout_s:g} s: {', '.join(missing.values())}; "
                        "see the logs of these workers",
                        min(missing),
                    )
                # While it is set, the batches of all workers wake this thread.
                self._priming = True
                if missing:
                    self._changed.wait(min(every_s, deadline_s - now_s))
                self._priming = False

    def stall_text(self, waited_s: float) -> str:
        """Describe for the user why no batch has come for this long."""
        with self._changed:
            return self._state.stall_text(waited_s)

    def stats(self) -> RunStats:
        """Return a snapshot of the run's input."""
        with self._changed:
            return self._state.stats(time.monotonic())

    def close(self, reason: str | None = None) -> None:
        """End the run: send BYE to the workers, or an ERR "run stopped: reason"; a second call does nothing.

        Returns when the connections are closed and their threads have ended, after at most a few seconds for
        a worker that does not answer. A `take` in another thread raises RingClosedError.
        """
        with self._changed:
            if self._end is not None:
                return
            self._end = end = RunEnd(reason)
            links = list(self._links.values())
            for link in links:
                link.queue_end(end.failure)
            self._changed.notify_all()
        self._on_close(self, end)
        for link in links:
            link.half_close()
        deadline_s = time.monotonic() + _CLOSE_S
        for link in links:
            link.join(max(0.0, deadline_s - time.monotonic()))
        with self._changed:
            self._slots = []
            self.memory.close()

    def _check_open(self) -> None:
        if self._end is not None:
            reason = self._end.reason or "the run is over"
            raise RingClosedError(f"the input of job {self.spec.job_id!r} is closed: {reason}")

    def _grant(self) -> list[ServerLink]:
        """Queue the credit that has become free; return the links to flush after the lock is released."""
        granted = []
        for worker, limit in self._state.new_limits(time.monotonic()):
            link = self._links.get(worker)
            if link is not None and link.grant(limit):
                granted.append(link)
        return granted

    # -- connections (each call from the thread of the link) ---------------------------------------------

    def attach(self, link: ServerLink, hello: Hello) -> Failure | None:
        """Give the link the place of its worker and welcome it; or return why not.

        An older connection of the worker is aborted, and its thread has left the slots before the new one may
        send: a partly received batch is received again.
        """
        with self._changed:
            failure = self._end.failure if self._end is not None else self._state.refusal(hello)
            if failure is not None or self._end is not None:
                self._changed.notify_all()  # a refusal may have ended the run
                return failure
            # Without digests of the transfer, the order digest has no content either.
            link.assign(hello.worker, self._state.connect(hello), self._spans, self.spec.checksum)
            old = self._links.get(hello.worker)
            self._links[hello.worker] = link
            name = self._state.describe(hello.worker)
            self._changed.notify_all()
        if old is not None:
            # Without the lock, which the old link's thread may need before it is idle.
            old.replace(name)
        with self._changed:
            if self._links.get(hello.worker) is link and self._end is None:
                welcome = self._state.welcome(hello.worker, hello.checksum, time.monotonic())
                window = self._state.window(hello.worker)
                if hello.shares_memory and self._shares_memory:
                    memory = link.share_memory(window, self.spec.layout.nbytes, welcome.next_seq)
                    if memory is not None:
                        welcome = replace(welcome, memory=memory.path, memory_token=memory.token)
                link.accept(welcome, self.spec.layout.nbytes, window)
        link.flush()
        _log.info("%s connected, generation %d", name, link.generation, extra=self._about(link))
        return None

    def slot_for(self, link: ServerLink, seq: int) -> Slot:
        """Return the slot of a link's batch."""
        return self._slots[self._state.slot_of_batch(link.worker, seq)]

    def commit(self, link: ServerLink, seqs: Sequence[int]) -> None:
        """Count the link's next batches as complete in their slots; no effect if the link is fenced."""
        contents = [self.slot_for(link, seq).content for seq in seqs]
        with self._changed:
            now_s = time.monotonic()
            if not all(
                self._state.commit(link.worker, link.generation, now_s, content) for content in contents
            ):
                return
            # Notify only if the consumer needs this worker's batch: a needless wake-up costs 20 us.
            if self._priming or self._state.is_awaited(link.worker):
                self._changed.notify_all()

    def skip(self, link: ServerLink) -> None:
        """Count the link's next position as received without a batch; no effect if the link is fenced."""
        with self._changed:
            if not self._state.skip(link.worker, link.generation, time.monotonic()):
                return
            granted = self._grant()
            self._changed.notify_all()
        _flush(granted)

    def end_worker(self, link: ServerLink, total: int) -> None:
        """Record that the link's worker has sent its whole input."""
        with self._changed:
            self._state.end(link.worker, link.generation)
            granted = self._grant()
            name = self._state.describe(link.worker)
            self._changed.notify_all()
        _flush(granted)
        _log.info("%s has sent its whole input, %d batches", name, total, extra=self._about(link))

    def fail_worker(self, link: ServerLink, failure: Failure) -> None:
        """Record that the link's worker has reported the failure of its input."""
        with self._changed:
            self._state.fail(link.worker, link.generation, failure)
            name = self._state.describe(link.worker)
            self._changed.notify_all()
        _log.error("%s: %s", name, failure.text, extra=self._about(link))

    def record_corruption(self, link: ServerLink, text: str) -> None:
        """Record that a batch of the link arrived corrupted."""
        with self._changed:
            again = self._state.record_corruption(link.worker, text)
            name = self._state.describe(link.worker)
            self._changed.notify_all()
        what = "it is sent once more" if again else "the run fails"
        _log.error("%s: %s; %s", name, text, what, extra=self._about(link))

    def detach(self, link: ServerLink, reason: str) -> None:
        """Record that the link's connection is over."""
        with self._changed:
            if self._links.get(link.worker) is link:
                del self._links[link.worker]
            self._state.lose(link.worker, link.generation, reason, time.monotonic())
            ended = self._end is not None
            name = self._state.describe(link.worker)
            self._changed.notify_all()
        if not ended:
            _log.warning(
                "%s: generation %d is gone: %s", name, link.generation, reason, extra=self._about(link)
            )

    def _about(self, link: ServerLink) -> dict[str, object]:
        """Return the fields of a log line about a worker."""
        return {"job": self.spec.job_id, "worker": link.worker}


def _flush(links: list[ServerLink]) -> None:
    for link in links:
        link.flush()
