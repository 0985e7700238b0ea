"""The data plane: frames, payloads, and both state machines with valid proofs."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

from cs_stream.batches import BatchLayout
from cs_stream.errors import LayoutError
from cs_stream.frames import FrameBuffer, FrameTags, FrameType, Header
from cs_stream.messages import Challenge, ErrorCode, Failure, Hello, Welcome
from cs_stream.protocol import ReadControl, ReadPayload, ServerConnection, ServerState, WorkerConnection
from cs_stream.shared_memory import NotSharedError, SharedMemory
from cs_toolkit.network.frames import FrameError
from tests.fuzz.target import Choices, Target, encode_text

SECRET, NONCE = "secret", "the system's nonce"
LAYOUT = BatchLayout.of([("x", "float32", (2, 3)), ("label", "int32", (2,))])
HELLO = Hello("job", "the worker's nonce", 1, 2, LAYOUT.to_json(), "digest", 1, "host", "instance")
WELCOME = Welcome(0, 4, ended=False, checksum=True, liveness_s=60.0, run_id="run", memory="/memory")
FAILURE = Failure(ErrorCode.INPUT_FAILED, "no more", "Traceback")
GENERATION, BATCH_BYTES = 3, LAYOUT.nbytes

PAYLOADS = {
    FrameType.HELLO: HELLO.encode(),
    FrameType.CHALLENGE: Challenge(NONCE).encode(),
    FrameType.WELCOME: WELCOME.encode(),
    FrameType.ERR: FAILURE.encode(),
}
TYPES = list(FrameType)


def parse_frames(data: bytes) -> None:
    """The first byte is the size of the pieces in which the others arrive."""
    step, rest, buffer = 1 + (data[0] if data else 0), memoryview(data[1:]), FrameBuffer()
    while rest:
        count = min(step, buffer.wanted)
        frame = buffer.feed(rest[:count])
        rest = rest[count:]
        if frame is not None and frame.header.type is FrameType.BATCH:
            rest = rest[min(frame.header.nbytes, len(rest)) :]


def parse_messages(data: bytes) -> None:
    kind, payload = data[:1], data[1:]
    message: Hello | Challenge | Welcome | Failure
    if kind == b"H":
        message = Hello.decode(payload)
        LAYOUT.difference(message.layout)
        assert Hello.decode(message.encode()) == message
        BatchLayout.from_json(message.layout)
    elif kind == b"C":
        message = Challenge.decode(payload)
        assert Challenge.decode(message.encode()) == message
    elif kind == b"W":
        message = Welcome.decode(payload, 0)
        assert Welcome.decode(message.encode(), 0) == message
    else:
        message = Failure.decode(payload)
        assert Failure.decode(message.encode()).code == message.code


def frame(kind: FrameType, seq: int = 0, flags: int = 0, payload: bytes | None = None) -> bytes:
    """Encode a frame of the peer as `next_frame` reads it."""
    content = PAYLOADS.get(kind, b"") if payload is None else payload
    head = bytes([TYPES.index(kind), flags, 0]) + seq.to_bytes(1, "little")
    return head + encode_text(content)


def next_frame(choices: Choices, tags: FrameTags | None, generation: int, worker: int = 1) -> bytes:
    """Return the bytes of the next frame of the peer, with the tag that a peer with the secret gives it."""
    kind, flags, change = TYPES[choices.number() % len(TYPES)], choices.number(), choices.number()
    seq, payload = choices.number(), choices.text()
    nbytes = len(payload)
    if kind is FrameType.BATCH:
        nbytes = 0 if flags & 2 else BATCH_BYTES
    header = Header(kind, worker, generation, seq, nbytes, flags)
    # Bits of `change` make a header that a correct peer does not send.
    if change & 1:
        header = header._replace(worker=7)
    if change & 2:
        header = header._replace(generation=99)
    if change & 4:
        header = header._replace(seq=(1 << 64) - 1 - seq)
    if change & 8:
        header = header._replace(nbytes=nbytes + 64)
    if kind is FrameType.BATCH:
        fields = [payload[:24].ljust(24, b"\0"), payload[64:72].ljust(8, b"\0")]
        return header.encode() if tags is None else tags.encode_batch(header, fields)
    encoded = header.encode() + payload if tags is None or change & 16 else tags.encode(header, payload)
    return encoded if not change & 32 else encoded[: len(encoded) // 2]


def drive_system(data: bytes) -> None:
    """The frames of a worker that knows the secret."""
    choices, server, tags = Choices(data), ServerConnection(), None
    # BATCH frames carry the fields of zeros.
    fields = [bytes(24), bytes(8)]
    while not choices.is_empty and server.state is not ServerState.CLOSED:
        action = choices.number()
        if action == 0:
            sent = next_frame(choices, tags, GENERATION if server.state is not ServerState.AWAIT_PROOF else 0)
            while sent and isinstance(want := server.wants(), ReadControl):
                server.receive_data(sent[: want.size_bytes])
                sent = sent[want.size_bytes :]
        elif action == 1:
            server.grant(choices.number())
        if server.state is ServerState.IDENTIFYING:
            server.challenge(SECRET, NONCE)
            tags = FrameTags(SECRET, server._worker_nonce, NONCE, server._hello, is_system=False)
        elif server.state is ServerState.DECIDING:
            server.accept(WELCOME, worker=1, generation=GENERATION, payload_bytes=BATCH_BYTES)
        want = server.wants()
        if isinstance(want, ReadPayload):
            assert want.seq == server.next_seq < server.limit
            server.payload_received(server.is_intact([] if want.is_shared else fields))
        server.data_to_send()


def drive_worker(data: bytes) -> None:
    """The frames of a system that knows the secret."""
    choices, worker = Choices(data), WorkerConnection(HELLO, SECRET)
    tags = FrameTags(SECRET, HELLO.nonce, NONCE, HELLO.encode(), is_system=True)
    while not choices.is_empty:
        match choices.number():
            case 0:
                worker.receive_data(next_frame(choices, tags, GENERATION))
            case 1 if worker.credit > 0:
                worker.count_batch()
            case 2 if worker.credit > 0:
                worker.skip_batch()
            case 3:
                worker.end_of_input()
            case _:
                worker.ping()
        assert worker.credit >= 0
        worker.data_to_send()


def open_memory(data: bytes) -> None:
    """The content of the memory that WELCOME names, after its token and the size of its slots."""
    choices = Choices(data)
    token, slot_bytes = choices.text().decode("latin1"), 64 * (1 + choices.number(2))
    content = data[4 + len(token) :]
    descriptor = os.memfd_create("memory", os.MFD_ALLOW_SEALING)
    try:
        os.write(descriptor, content)
        fcntl.fcntl(
            descriptor, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL
        )
        memory = SharedMemory.open(f"/proc/self/fd/{descriptor}", token, slot_bytes)
        batch = [memoryview(bytes(slot_bytes))]
        for seq in (0, 1, 7, 2**40):
            if memory.has_room(seq):
                memory.write(seq, batch)
        memory.close()
    finally:
        os.close(descriptor)


def memory_seeds() -> list[bytes]:
    memory = SharedMemory.create(2, 128)
    try:
        token, content = memory.token, Path(memory.path).read_bytes()
    finally:
        memory.close()
    fixed = b"0123456789abcdef"
    return [
        encode_text(fixed.hex().encode()) + (2).to_bytes(2, "little") + fixed + content[len(token) // 2 :]
    ]


def frame_seeds() -> list[bytes]:
    frames = [Header(kind, 1, 0, 0, len(PAYLOADS[kind])).encode() + PAYLOADS[kind] for kind in PAYLOADS]
    batch = Header(FrameType.BATCH, 1, 3, 0, BATCH_BYTES, 1).encode() + bytes(BATCH_BYTES)
    rest = b"".join(Header(kind, 1, 3).encode() for kind in FrameType if kind not in PAYLOADS)
    return [b"\xff" + b"".join([*frames, batch, rest]), b"\x02" + frames[0]]


def system_seeds() -> list[bytes]:
    def sent(kind: FrameType, seq: int = 0, flags: int = 0) -> bytes:
        return b"\0" + frame(kind, seq, flags)

    start = sent(FrameType.HELLO) + sent(FrameType.PROOF)
    batches = b"".join(sent(FrameType.BATCH, seq, 1) for seq in range(3))
    return [
        start + batches + b"\1\x08" + sent(FrameType.BATCH, 3, 1) + sent(FrameType.EOS, 4),
        start + sent(FrameType.SKIP) + sent(FrameType.PING) + sent(FrameType.BATCH, 1, 2),
        start + sent(FrameType.ERR),
    ]


def worker_seeds() -> list[bytes]:
    def sent(kind: FrameType, seq: int = 0, flags: int = 0) -> bytes:
        return b"\0" + frame(kind, seq, flags)

    start = sent(FrameType.CHALLENGE) + sent(FrameType.WELCOME)
    return [
        start
        + b"\1\1\2"
        + sent(FrameType.CREDIT, 9)
        + sent(FrameType.PING, 0, 1)
        + b"\3"
        + sent(FrameType.BYE),
        start + b"\3" + sent(FrameType.ERR),
        sent(FrameType.CHALLENGE) + sent(FrameType.BYE),
    ]


TARGETS = [
    Target("stream.frames", parse_frames, (FrameError,), frame_seeds),
    Target(
        "stream.messages",
        parse_messages,
        (FrameError, LayoutError),
        lambda: [
            name + PAYLOADS[kind] for name, kind in zip((b"H", b"C", b"W", b"E"), PAYLOADS, strict=True)
        ],
    ),
    Target("stream.system", drive_system, (FrameError,), system_seeds),
    Target("stream.shared_memory", open_memory, (NotSharedError,), memory_seeds),
    Target("stream.worker", drive_worker, (FrameError,), worker_seeds),
]
