"""The codec and the two ends of a connection over arbitrary bytes, in arbitrary pieces."""

import itertools
import math
from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from cs_stream.batches import BatchLayout, Field, RingMemory, byte_view, conform, wire_buffers
from cs_stream.frames import FLAG_CHECKSUM, FLAG_PONG, HEADER_BYTES, FrameType, Header, decode_header
from cs_stream.messages import ErrorCode, Failure, Hello, Welcome
from cs_stream.protocol import (
    ReadControl,
    ReadPayload,
    ServerConnection,
    ServerEvent,
    ServerState,
    WorkerConnection,
    WorkerEvent,
    WorkerState,
)
from cs_toolkit.network.frames import FrameError

# The same examples in every run; no limit on the time of one, since the machine may be busy.
repeatable = settings(derandomize=True)

u32 = st.integers(0, 2**32 - 1)
u64 = st.integers(0, 2**64 - 1)
texts = st.text(max_size=40)
zero, tags = st.just(0), st.binary(min_size=16, max_size=16)
headers = st.one_of(
    st.tuples(st.just(FrameType.BATCH), u32, u32, u64, u64, st.just(FLAG_CHECKSUM), tags),
    st.tuples(
        st.sampled_from([FrameType.CREDIT, FrameType.EOS, FrameType.BYE]), u32, u32, u64, zero, zero, tags
    ),
    st.tuples(st.just(FrameType.PING), u32, u32, zero, zero, st.sampled_from([0, FLAG_PONG]), tags),
    st.tuples(st.just(FrameType.HELLO), u32, u32, zero, st.integers(0, 1 << 20), zero, tags),
).map(Header._make)
hellos = st.builds(
    Hello,
    job_id=texts,
    nonce=texts,
    worker=st.just(1),
    num_workers=st.integers(2, 9),
    layout=st.recursive(st.none() | st.integers() | texts, lambda inner: st.lists(inner, max_size=3)),
    input_digest=texts,
    pid=st.integers(0, 1 << 22),
    host=texts,
    instance=texts,
    run_id=texts,
    checksum=st.just(True),
)
SECRET, NONCE = "secret", "the system's nonce"
HELLO = Hello("job", "the worker's nonce", 1, 2, [], "", 1, "host", "instance")
WELCOME = Welcome(next_seq=0, limit=1000, ended=False, checksum=True, liveness_s=60.0, run_id="run")
PAYLOAD_BYTES = 64


@repeatable
@given(headers)
def test_a_header_reads_back_as_it_was_written(header: Header) -> None:
    data = header.encode()
    assert len(data) == HEADER_BYTES
    assert decode_header(data) == header


@repeatable
@given(headers, st.integers(0, HEADER_BYTES - 1), st.integers(1, 255))
def test_a_changed_byte_gives_another_header_or_a_protocol_error(
    header: Header, offset: int, flip: int
) -> None:
    data = bytearray(header.encode())
    data[offset] ^= flip
    try:
        changed = decode_header(data)
    except FrameError:
        return
    assert changed != header
    assert changed.encode() == data


@repeatable
@given(hellos)
def test_a_hello_reads_back_as_it_was_written(hello: Hello) -> None:
    assert Hello.decode(hello.encode()) == hello


@repeatable
@given(st.binary(max_size=200))
def test_random_json_bytes_never_raise_anything_else(payload: bytes) -> None:
    for decode in (Hello.decode, Failure.decode, lambda data: Welcome.decode(data, 0)):
        with pytest.raises(FrameError, match=r"^(HELLO|ERR|WELCOME): "):
            decode(payload)


@st.composite
def cuts(draw: st.DrawFn, size: int) -> list[int]:
    """Piece sizes that cover `size` bytes."""
    inner = draw(st.lists(st.integers(1, max(1, size - 1)), max_size=20, unique=True))
    edges = sorted({0, size, *(cut for cut in inner if cut < size)})
    return [after - before for before, after in itertools.pairwise(edges)]


def pieces(data: bytes, sizes: list[int]) -> Iterator[bytes]:
    start = 0
    for size in sizes:
        yield data[start : start + size]
        start += size


class ReceivingEnd:
    """Drives a ServerConnection as the I/O does, from a stream that arrives in pieces."""

    def __init__(self) -> None:
        self.core = ServerConnection()
        self.events: list[ServerEvent] = []
        self.payload = b""

    def arrive(self, data: bytes) -> None:
        while data and (want := self.core.wants()) is not None:
            if isinstance(want, ReadControl):
                self.note(self.core.receive_data(data[: want.size_bytes]))
                data = data[want.size_bytes :]
            else:
                data = self.receive_payload(want, data)

    def receive_payload(self, want: ReadPayload, data: bytes) -> bytes:
        missing = want.size_bytes - len(self.payload)
        self.payload += data[:missing]
        if len(self.payload) == want.size_bytes:
            self.note(self.core.payload_received(self.core.is_intact([self.payload])))
            self.payload = b""
        return data[missing:]

    def note(self, events: list[ServerEvent]) -> None:
        self.events += events
        if self.core.state is ServerState.IDENTIFYING:
            self.core.challenge(SECRET, NONCE)
        if self.core.state is ServerState.DECIDING:
            self.core.accept(WELCOME, worker=1, generation=4, payload_bytes=PAYLOAD_BYTES)


def worker_stream(hello: Hello, batches: int, ending: str) -> bytes:
    """Generate the frames of a worker from HELLO to its end."""
    worker = WorkerConnection(hello, SECRET)
    data = worker.data_to_send()
    answer = ReceivingEnd()
    answer.arrive(data)
    worker.receive_data(answer.core.data_to_send())
    data += (proof := worker.data_to_send())
    answer.arrive(proof)
    worker.receive_data(answer.core.data_to_send())
    for seq in range(batches):
        payload = bytes([seq % 256]) * PAYLOAD_BYTES
        data += worker.batch_header(PAYLOAD_BYTES, [payload]) + payload
        worker.count_batch()
        worker.ping()
        data += worker.data_to_send()
    if ending == "eos":
        worker.end_of_input()
    else:
        worker.fail(Failure(ErrorCode.INPUT_FAILED, "input failed: x"))
    return data + worker.data_to_send()


@repeatable
@given(st.data(), hellos, st.integers(0, 4), st.sampled_from(["eos", "err"]))
def test_the_systems_end_sees_the_same_events_in_any_pieces(
    data: st.DataObject, hello: Hello, batches: int, ending: str
) -> None:
    stream = worker_stream(hello, batches, ending)
    whole, cut = ReceivingEnd(), ReceivingEnd()
    whole.arrive(stream)
    for piece in pieces(stream, data.draw(cuts(len(stream)))):
        cut.arrive(piece)
    assert cut.events == whole.events
    assert len(whole.events) == batches + 3
    assert cut.core.data_to_send() == whole.core.data_to_send()


@repeatable
@given(st.data(), st.lists(st.integers(1, 50), max_size=5), st.sampled_from(["bye", "err"]))
def test_the_workers_end_sees_the_same_events_in_any_pieces(
    data: st.DataObject, grants: list[int], ending: str
) -> None:
    worker, server = WorkerConnection(HELLO, SECRET), ReceivingEnd()
    server.arrive(worker.data_to_send())
    stream = server.core.data_to_send()
    worker.receive_data(stream)
    server.arrive(worker.data_to_send())
    limit = WELCOME.limit
    for grant in grants:
        limit += limit + grant  # so much that it is not held back
        server.core.grant(limit)
    if ending == "bye":
        server.core.bye()
    else:
        server.core.fail(Failure(ErrorCode.STOPPED, "run stopped: enough"))
    stream += server.core.data_to_send()
    whole = WorkerConnection(HELLO, SECRET).receive_data(stream)
    cut_worker = WorkerConnection(HELLO, SECRET)
    cut: list[WorkerEvent] = []
    for piece in pieces(stream, data.draw(cuts(len(stream)))):
        cut += cut_worker.receive_data(piece)
    assert cut == whole
    assert len(whole) == len(grants) + 2
    assert cut_worker.limit == limit


@repeatable
@given(st.data(), st.binary(min_size=1, max_size=300), st.integers(0, 3))
def test_garbage_in_a_stream_closes_or_waits_for_more_and_raises_nothing_else(
    data: st.DataObject, garbage: bytes, batches: int
) -> None:
    stream = bytearray(worker_stream(HELLO, batches, "eos"))
    offset = data.draw(st.integers(0, len(stream) - 1))
    stream[offset : offset + len(garbage)] = garbage
    end = ReceivingEnd()
    try:
        end.arrive(bytes(stream))
    except FrameError:
        assert end.core.state is ServerState.CLOSED
        assert end.core.wants() is None


@repeatable
@given(st.binary(min_size=1, max_size=400))
def test_garbage_from_a_system_closes_or_waits_for_more_and_raises_nothing_else(garbage: bytes) -> None:
    worker = WorkerConnection(HELLO, SECRET)
    try:
        worker.receive_data(garbage)
    except FrameError:
        assert worker.state is WorkerState.CLOSED
        assert worker.credit == 0


dtypes = st.sampled_from(["bool", "uint8", "int16", "float16", "float32", "int64", "complex64"])
shapes = st.lists(st.integers(1, 5), max_size=3).map(tuple)


@st.composite
def layouts(draw: st.DrawFn) -> BatchLayout:
    count = draw(st.integers(1, 5))
    return BatchLayout(tuple(Field(f"f{index}", draw(dtypes), draw(shapes)) for index in range(count)))


@repeatable
@given(layouts())
def test_a_layout_reads_back_and_its_fields_lie_aligned_without_overlap(layout: BatchLayout) -> None:
    again = BatchLayout.from_json(layout.to_json())
    assert again == layout
    assert again.digest == layout.digest
    assert layout.difference(again.to_json()) is None
    ends = [0]
    for offset, field in zip(layout.offsets, layout.fields, strict=True):
        assert offset % 64 == 0
        assert 0 <= offset - ends[-1] < 64
        ends.append(offset + field.nbytes)
    assert layout.nbytes == math.ceil(ends[-1] / 64) * 64


@repeatable
@given(layouts(), st.integers(1, 3), st.integers(1, 3), st.data())
def test_the_slot_has_the_bytes_that_were_sent(
    layout: BatchLayout, chunk_batches: int, chunks: int, data: st.DataObject
) -> None:
    memory = RingMemory(layout, chunk_batches, chunks)
    index = data.draw(st.integers(0, chunks * chunk_batches - 1))
    random = np.random.default_rng(data.draw(st.integers(0, 100)))
    batch: list[NDArray[np.generic]] = [
        random.integers(0, 2, field.shape).astype(field.numpy_dtype) for field in layout.fields
    ]
    views = [byte_view(array) for array in conform(layout, batch, "batch")]
    stream = b"".join(wire_buffers(views, memoryview(bytes(64))))
    slot = memory.slot(index)
    for buffer in slot.buffers:
        buffer[:], stream = stream[: buffer.nbytes], stream[buffer.nbytes :]
    assert not stream
    assert [bytes(field) for field in slot.fields] == [bytes(view) for view in views]
    for stacked, array in zip(memory.chunks[index // chunk_batches], batch, strict=True):
        np.testing.assert_array_equal(stacked[index % chunk_batches], array)
