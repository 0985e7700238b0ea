"""Random schedules of a run: in any order of events, each batch is taken once, in order."""

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from cs_stream.batches import BatchLayout
from cs_stream.errors import EndOfInput
from cs_stream.messages import Hello
from cs_stream.order import InputOrder
from cs_stream.run_state import RunSpec, RunState

LAYOUT = BatchLayout.of([("x", "int32", (4,))])


class Schedule(RuleBasedStateMachine):
    """Workers connect, stream, vanish, come back and end; a consumer takes and releases."""

    @initialize(
        num_workers=st.integers(1, 4),
        chunk_batches=st.integers(1, 4),
        chunks=st.integers(1, 3),
        first_position=st.integers(0, 20),
        lengths=st.lists(st.integers(0, 12), min_size=1, max_size=6),
    )
    def open(
        self, num_workers: int, chunk_batches: int, chunks: int, first_position: int, lengths: list[int]
    ) -> None:
        self.spec = RunSpec(
            "job",
            "t",
            num_workers,
            LAYOUT,
            "",
            first_position,
            chunk_batches=chunk_batches,
            chunks=chunks,
            shards=len(lengths),
        )
        self.state = RunState(self.spec, "run")
        self.order = self.spec.order
        self.lengths = lengths
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
            if seq is None or self.ended[worker] or seq >= self.limits[worker] or self.is_over(worker, seq):
                return
            # The slot must be free: nobody may still hold the position that used it before.
            position = self.order.position_of(worker, seq)
            assert position - self.spec.slots < self.state.released
            count_it = self.state.commit if self.exists(position) else self.state.skip
            assert count_it(worker, self.generations[worker], 0.0)
            self.grant()
            self.next_seq[worker] = seq + 1

    def exists(self, position: int) -> bool:
        shard, batch = self.order.place_of(position)
        return batch < self.lengths[shard]

    def is_over(self, worker: int, seq: int) -> bool:
        """Whether the worker has no batch from `seq` on."""
        parts = self.order.share(worker, self.order.position_of(worker, seq))
        return all(part.first >= self.lengths[part.shard] for part in parts)

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
        if seq is not None and not self.ended[worker] and self.is_over(worker, seq):
            self.state.end(worker, self.generations[worker])
            self.ended[worker] = True
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
        return [p for p in range(self.spec.first_position, 120) if self.exists(p)]

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
        worker = self.order.worker_of(self.state.position)
        assert self.state.next_worker() == worker
        assert not self.ended[worker] or self.exists(self.state.position)

    @invariant()
    def what_is_held_or_received_fits_the_ring(self) -> None:
        if not hasattr(self, "spec"):
            return
        end = self.state.released + self.spec.slots
        assert self.state.released <= self.state.position
        assert all(first + count <= end for first, count in self.held)
        for worker, entry in enumerate(self.state.stats(0.0).workers):
            last = self.order.position_of(worker, entry.received - 1)
            assert last < end


Schedule.TestCase.settings = settings(max_examples=80, stateful_step_count=50, derandomize=True)
TestSchedule = Schedule.TestCase


@given(workers=st.integers(1, 9), shards=st.integers(1, 9), first=st.integers(0, 100))
def test_every_position_has_one_worker_and_every_shard_is_read_in_order(
    workers: int, shards: int, first: int
) -> None:
    order = InputOrder(workers, shards)
    positions = range(first, first + 3 * order.parts)
    read: dict[int, int] = {}
    for worker in range(workers):
        seq = order.count_before(worker, first)
        while (position := order.position_of(worker, seq)) in positions:
            assert position not in read
            assert order.worker_of(position) == worker
            assert order.count_before(worker, position) == seq
            read[position] = worker
            seq += 1
    assert sorted(read) == list(positions)
    # The parts of a worker, read in rotation, are its positions.
    for worker in range(workers):
        own = [position for position in positions if read[position] == worker]
        parts = order.share(worker, own[0])
        turns = len(own) // len(parts)
        expected = [(p.shard, p.first + turn * p.stride) for turn in range(turns) for p in parts]
        assert [order.place_of(position) for position in own[: len(expected)]] == expected


@given(before=st.integers(1, 7), after=st.integers(1, 7), shards=st.integers(1, 9), stop=st.integers(0, 60))
def test_a_change_of_workers_repeats_and_loses_nothing(
    before: int, after: int, shards: int, stop: int
) -> None:
    used = [InputOrder(before, shards).place_of(position) for position in range(stop)]
    order = InputOrder(after, shards)
    for worker in range(after):
        for part in order.share(worker, stop):
            used += [(part.shard, part.first + n * part.stride) for n in range(3)]
    assert len(used) == len(set(used))
    # Complete up to the batches that the part with the fewest has read.
    least = min(batch for shard, batch in used[stop:]) + 2 * order.stride
    assert set(used) >= {
        (shard, batch) for shard in range(shards) for batch in range(min(least, stop // shards))
    }
