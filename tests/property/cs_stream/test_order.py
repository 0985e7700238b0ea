"""Random schedules of a run: in any order of events, each batch is taken once, in order."""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from cs_stream.batches import BatchLayout
from cs_stream.errors import EndOfInput
from cs_stream.messages import Hello
from cs_stream.run_state import RunSpec, RunState, position_of

LAYOUT = BatchLayout.of([("x", "int32", (4,))])


class Schedule(RuleBasedStateMachine):
    """Workers connect, stream, vanish, come back and end; a consumer takes and releases."""

    @initialize(
        num_workers=st.integers(1, 4),
        chunk_batches=st.integers(1, 4),
        chunks=st.integers(1, 3),
        first_position=st.integers(0, 20),
        lengths=st.lists(st.integers(0, 12), min_size=4, max_size=4),
    )
    def open(
        self, num_workers: int, chunk_batches: int, chunks: int, first_position: int, lengths: list[int]
    ) -> None:
        self.spec = RunSpec(
            "job", "t", num_workers, LAYOUT, "", first_position, chunk_batches=chunk_batches, chunks=chunks
        )
        self.state = RunState(self.spec, "run")
        self.lengths = lengths[:num_workers]
        self.generations = [0] * num_workers
        self.next_seq: list[int | None] = [None] * num_workers
        self.limits = [0] * num_workers
        self.ended = [False] * num_workers
        self.taken: list[int] = []
        self.held: list[tuple[int, int]] = []
        self.over = False

    def grant(self) -> None:
        for worker, limit in self.state.new_limits(0.0):
            assert limit > self.limits[worker] or self.next_seq[worker] is None
            self.limits[worker] = limit

    @rule(pick=st.integers(0, 3))
    def connect(self, pick: int) -> None:
        worker = pick % self.spec.num_workers
        hello = Hello("job", "t", worker, self.spec.num_workers, LAYOUT.to_json(), "", 1, "h", "i")
        self.generations[worker] = self.state.connect(hello)
        welcome = self.state.welcome(worker, True, 0.0)
        self.next_seq[worker] = welcome.next_seq
        self.limits[worker] = welcome.limit

    @rule(pick=st.integers(0, 3), count=st.integers(1, 6))
    def send(self, pick: int, count: int) -> None:
        worker = pick % self.spec.num_workers
        for _ in range(count):
            seq = self.next_seq[worker]
            if seq is None or self.ended[worker] or seq >= min(self.limits[worker], self.lengths[worker]):
                return
            # The slot must be free: nobody may still hold the position that used it before.
            before = position_of(worker, seq, self.spec.num_workers) - self.spec.slots
            assert before < self.state.released
            assert self.state.commit(worker, self.generations[worker], 0.0)
            self.next_seq[worker] = seq + 1

    @rule(pick=st.integers(0, 3))
    def send_from_a_fenced_connection(self, pick: int) -> None:
        worker = pick % self.spec.num_workers
        assert not self.state.commit(worker, self.generations[worker] + 1, 0.0)

    @rule(pick=st.integers(0, 3))
    def vanish(self, pick: int) -> None:
        worker = pick % self.spec.num_workers
        self.state.lose(worker, self.generations[worker], "gone", 0.0)
        self.next_seq[worker] = None

    @rule(pick=st.integers(0, 3))
    def end(self, pick: int) -> None:
        worker = pick % self.spec.num_workers
        seq = self.next_seq[worker]
        if seq is not None and seq >= self.lengths[worker] and not self.ended[worker]:
            self.state.end(worker, self.generations[worker])
            self.ended[worker] = True
            # A worker that resumed after its end has sent nothing, and reports that this is its whole input.
            self.lengths[worker] = seq
            self.grant()

    @rule()
    def take(self) -> None:
        try:
            span = self.state.take()
        except EndOfInput:
            self.over = True
            return
        assert not self.over
        if span is not None:
            self.held.append(span)
            self.taken += range(span[0], span[0] + span[1])
            chunk = self.spec.chunk_batches
            assert span[0] // chunk == (span[0] + span[1] - 1) // chunk

    @precondition(lambda self: bool(getattr(self, "held", [])))
    @rule(pick=st.integers(0, 10))
    def release(self, pick: int) -> None:
        self.state.release(*self.held.pop(pick % len(self.held)))
        self.grant()

    def expected(self) -> list[int]:
        """Positions with a batch, in order, up to the last one that can be known."""
        first, num_workers = self.spec.first_position, self.spec.num_workers
        top = first + 20 * num_workers
        return [p for p in range(first, top) if p // num_workers < self.lengths[p % num_workers]]

    @invariant()
    def batches_are_taken_once_and_in_order(self) -> None:
        if not hasattr(self, "spec"):
            return
        assert self.taken == self.expected()[: len(self.taken)]
        if self.over:
            assert self.taken == self.expected()

    @invariant()
    def the_cursor_waits_for_a_batch_that_can_come(self) -> None:
        if not hasattr(self, "spec") or all(self.ended):
            return
        seq, worker = divmod(self.state.position, self.spec.num_workers)
        assert self.state.next_worker() == worker
        assert not self.ended[worker] or seq < self.lengths[worker]

    @invariant()
    def what_is_held_or_received_fits_the_ring(self) -> None:
        if not hasattr(self, "spec"):
            return
        end = self.state.released + self.spec.slots
        assert self.state.released <= self.state.position
        assert all(first + count <= end for first, count in self.held)
        for worker, entry in enumerate(self.state.stats(0.0).workers):
            last = position_of(worker, entry.received - 1, self.spec.num_workers)
            assert last < end


Schedule.TestCase.settings = settings(max_examples=80, stateful_step_count=50, derandomize=True)
TestSchedule = Schedule.TestCase
