"""Test tools for senders and receivers of batches: numbered batches, runs over loopback, and a bare worker.

    with Loopback(num_workers=2) as run:
        senders = [run.start_sender(worker, count=10) for worker in range(2)]
        assert take_numbered(run.ring) == list(range(20))       # checks every byte
        run.ring.close()
        assert senders[0].result(timeout=10).end == "bye"

`RawWorker` speaks the protocol one step at a time, so that a test can stop in the middle of a frame or send a
wrong one.
"""

import os
import socket
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from types import TracebackType
from typing import Any, Self

import numpy as np

from cs_stream.batches import Array, BatchLayout, byte_view, wire_buffers
from cs_stream.errors import EndOfInput
from cs_stream.frames import FLAG_CHECKSUM, Frame, FrameBuffer, FrameTags, FrameType, Header
from cs_stream.messages import Challenge, Failure, Hello, Welcome
from cs_stream.order import InputOrder
from cs_stream.receiver import Receiver, RunSpec
from cs_stream.ring import BatchRing
from cs_stream.sender import Sender, SendSummary, WorkerIdentity
from cs_toolkit.security.proofs import new_nonce

_PRIME = 251


def numbered_batch(layout: BatchLayout, position: int) -> tuple[Array, ...]:
    """Return the batch of a position: arrays whose every element depends on it."""
    return tuple(
        ((np.arange(int(np.prod(item.shape))) + 7 * position + index) % _PRIME)
        .astype(item.numpy_dtype)
        .reshape(item.shape)
        for index, item in enumerate(layout.fields)
    )


def numbered_input(
    layout: BatchLayout, worker: int, num_workers: int, count: int
) -> Callable[[int], Iterator[tuple[Array, ...]]]:
    """Return the input of a worker, `count` batches in total, in the form that `Sender.run` takes."""

    def make_batches(skip: int) -> Iterator[tuple[Array, ...]]:
        for seq in range(skip, count):
            yield numbered_batch(layout, InputOrder(num_workers, num_workers).position_of(worker, seq))

    return make_batches


def take_numbered(ring: BatchRing, count: int | None = None, timeout_s: float = 30.0) -> list[int]:
    """Take `count` numbered batches, or all until the input ends, check them, and return their positions.

    Raises:
        AssertionError: a batch is not the one of its position.
    """
    positions: list[int] = []
    while count is None or len(positions) < count:
        try:
            span = ring.take(timeout_s, None if count is None else count - len(positions))
        except EndOfInput:
            break
        for row in range(span.count):
            position = span.first_position + row
            for got, expected in zip(span.arrays, numbered_batch(ring.spec.layout, position), strict=True):
                np.testing.assert_array_equal(got[row], expected, err_msg=f"position {position}")
            positions.append(position)
        ring.release(span)
    return positions


SMALL = BatchLayout.of([("image", "float32", (4, 3)), ("label", "int32", (4,))])


class Loopback:
    """A receiver on loopback with one open run, and senders in threads; everything ends with the context.

    Args:
        num_workers: Number of workers of the run.
        layout: Layout of its batches; a small one by default.
        shares_memory: Whether batches come in shared memory; most tests are about what the socket carries.
        **options: Further arguments of `RunSpec`.

    Attributes:
        receiver: The data port.
        spec: The run.
        ring: Its input.
    """

    def __init__(
        self,
        num_workers: int = 1,
        layout: BatchLayout = SMALL,
        shares_memory: bool = False,
        **options: Any,
    ) -> None:
        settings = {"chunk_batches": 4, "chunks": 2} | options
        self.spec = RunSpec("job", "a secret", num_workers, layout, "digest", **settings)
        self.receiver = Receiver(shares_memory=shares_memory)
        self.ring = self.receiver.open_run(self.spec)
        self._pool = ThreadPoolExecutor(max_workers=64, thread_name_prefix="loopback-sender")
        self._senders: list[Sender] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.receiver.close()
        for sender in self._senders:
            sender.stop()
        self._pool.shutdown(wait=True, cancel_futures=True)

    def identity(self, worker: int, **changes: Any) -> WorkerIdentity:
        """Return the identity that the run expects of a worker, with changes."""
        spec = self.spec
        expected = WorkerIdentity(spec.job_id, spec.token, worker, spec.num_workers, spec.input_digest)
        return replace(expected, **changes)

    def sender(self, worker: int, address: tuple[str, int] | None = None, **options: Any) -> Sender:
        """Return a sender with the run's own settings, for another address if a proxy is in between."""
        settings = {"connect_timeout_s": 20.0, "reconnect_timeout_s": 20.0} | options
        sender = Sender(address or self.receiver.address, self.identity(worker), self.spec.layout, **settings)
        self._senders.append(sender)
        return sender

    def start(
        self, sender: Sender, make_batches: Callable[[int], Iterable[Sequence[Array]]]
    ) -> Future[SendSummary]:
        """Run a sender in a thread."""
        return self._pool.submit(sender.run, make_batches)

    def start_sender(self, worker: int, count: int, **options: Any) -> Future[SendSummary]:
        """Stream a numbered input of `count` batches in a thread."""
        make_batches = numbered_input(self.spec.layout, worker, self.spec.num_workers, count)
        return self.start(self.sender(worker, **options), make_batches)

    def cut(self, worker: int) -> None:
        """Break the connection of a worker, as the network may."""
        self.ring._links[worker].abort()

    def raw_worker(self, worker: int, /, **changes: Any) -> "RawWorker":
        """Connect a bare worker that has sent nothing yet; `changes` are fields of its HELLO."""
        return RawWorker(self.receiver.address, self.identity(worker), self.spec.layout, **changes)


class RawWorker:
    """A worker that sends only the frames that a test asks for.

    Args:
        address: Address of the data port.
        identity: Identity of the worker.
        layout: Layout of its batches.
        changes: Fields of `Hello` that replace the legal ones.
    """

    def __init__(
        self, address: tuple[str, int], identity: WorkerIdentity, layout: BatchLayout, /, **changes: Any
    ) -> None:
        self.layout = layout
        self.identity = identity
        self.generation = 0
        self.sock = socket.create_connection(address, timeout=30)
        self.tags: FrameTags | None = None
        self._buffer = FrameBuffer()
        hello = Hello(
            job_id=identity.job_id,
            nonce=new_nonce(),
            worker=identity.worker,
            num_workers=identity.num_workers,
            layout=layout.to_json(),
            input_digest=identity.input_digest,
            pid=os.getpid(),
            host="raw",
            instance=f"raw-{id(self)}",
        )
        self.hello: Hello = replace(hello, **changes)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.sock.close()

    def hello_frame(self) -> bytes:
        """Return the frame of HELLO."""
        payload = self.hello.encode()
        return Header(FrameType.HELLO, self.identity.worker, 0, nbytes=len(payload)).encode() + payload

    def send_hello(self) -> Frame:
        """Send HELLO, and PROOF if the system asks for it; return the system's answer."""
        self.send(self.hello_frame())
        answer = self.read_frame()
        if answer.header.type is FrameType.CHALLENGE:
            self.learn(Challenge.decode(answer.payload).nonce)
            self.send(self.control_frame(FrameType.PROOF))
            answer = self.read_frame()
        self.generation = answer.header.generation
        return answer

    def learn(self, nonce: str) -> None:
        """Take the system's nonce: tags of frames are known from now on."""
        secret, own = self.identity.token, self.hello
        self.tags = FrameTags(secret, own.nonce, nonce, own.encode(), is_system=False)

    def join(self) -> Welcome:
        """Send HELLO; return the WELCOME.

        Raises:
            AssertionError: the system refuses.
        """
        answer = self.send_hello()
        assert answer.header.type is FrameType.WELCOME, answer
        return Welcome.decode(answer.payload, answer.header.seq)

    def batch_frame(self, seq: int, **changes: Any) -> bytes:
        """Return the frame of this worker's numbered batch `seq`.

        `changes` replace fields of its header before it is tagged, a `tag` afterwards.
        """
        arrays = numbered_batch(
            self.layout,
            InputOrder(self.identity.num_workers, self.identity.num_workers).position_of(
                self.identity.worker, seq
            ),
        )
        fields = [byte_view(array) for array in arrays]
        payload = b"".join(wire_buffers(fields, memoryview(bytes(64))))
        tag = changes.pop("tag", None)
        header = Header(
            FrameType.BATCH, self.identity.worker, self.generation, seq, len(payload), FLAG_CHECKSUM
        )
        assert self.tags is not None
        head = self.tags.encode_batch(header._replace(**changes), fields)
        return (head if tag is None else head[:32] + tag + head[48:]) + payload

    def control_frame(self, frame_type: FrameType, seq: int = 0, **changes: Any) -> bytes:
        """Return a frame without payload; `changes` replace fields of its header."""
        assert self.tags is not None
        header = Header(frame_type, self.identity.worker, self.generation, seq)
        return self.tags.encode(header._replace(**changes))

    def send(self, data: bytes) -> None:
        """Send bytes unchanged."""
        self.sock.sendall(data)

    def read_frame(self) -> Frame:
        """Read the next frame from the system.

        Raises:
            EOFError: the system has closed the connection.
        """
        while True:
            data = self.sock.recv(self._buffer.wanted)
            if not data:
                raise EOFError("the connection is closed")
            frame = self._buffer.feed(data)
            if frame is not None:
                return frame

    def read_failure(self) -> Failure:
        """Read the next ERR frame, skipping other frames.

        Raises:
            EOFError: the system has closed the connection without one.
        """
        while True:
            frame = self.read_frame()
            if frame.header.type is FrameType.ERR:
                return Failure.decode(frame.payload)
