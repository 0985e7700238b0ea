"""Contenders of the data plane: plain sockets, gRPC, tf.data service and Arrow Flight.

All of them stream the same batches, of one large and one small array, from sender processes into numpy arrays
of this process. Plain sockets are the basis of the data plane, without it: a thread for each connection,
`recv_into` a pool of slots, an 8-byte acknowledgment for each batch and a window of batches; with TLS they
are blocking sockets of `ssl`. No contender computes digests, or hands batches to a consumer.
"""

from __future__ import annotations

import importlib.util
import socket
import ssl
import struct
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from cs_stream.batches import Array, BatchLayout, byte_view
from cs_toolkit.security.tls import Credentials

LABELS = 256
POOL = 3
LIMIT_S = 120
ACK = struct.Struct("<Q")
Address = tuple[Any, ...]


@dataclass(frozen=True)
class Case:
    """A size of batches, and how many each sender streams; see `Clock` for those that are measured."""

    size_bytes: int
    batches: int
    senders: int = 2

    @property
    def layout(self) -> BatchLayout:
        """The large array and the labels."""
        return BatchLayout.of([("x", "uint8", (self.size_bytes,)), ("y", "int32", (LABELS,))])

    @property
    def window(self) -> int:
        """Batches of a sender that may be in flight: 4 MiB, as far as that is between 4 and 48 batches."""
        return min(48, max(4, (4 << 20) // self.size_bytes))

    @property
    def total(self) -> int:
        """Batches of all senders."""
        return self.senders * self.batches

    @property
    def size_text(self) -> str:
        """The size with its unit."""
        size = self.size_bytes
        return f"{size >> 10} KiB" if size < 1 << 20 else f"{size >> 20} MiB"

    @property
    def name(self) -> str:
        """The size and the senders in words."""
        return f"{self.size_text} batches, {self.senders} sender{'s' if self.senders > 1 else ''}"


def batch_pool(case: Case, seed: int) -> list[tuple[Array, Array]]:
    """Make a few different batches, which a sender repeats, so that its input costs nothing."""
    random = np.random.default_rng(seed)
    return [
        (
            random.integers(0, 256, case.size_bytes, dtype=np.uint8),
            random.integers(0, 10, LABELS, dtype=np.int32),
        )
        for _ in range(POOL)
    ]


class Clock:
    """Wall time and CPU time of all processes, from the end of the warm-up to the last batch.

    The warm-up is the first tenth of the batches, and at least as many as the receiver keeps: each slot of a
    new ring takes page faults once, and plain sockets take them before they receive.

    Args:
        case: What is measured.
        pids: The sender processes.

    Attributes:
        gigabytes_per_s: Rate of the measured batches.
        cpu_s_per_gb: CPU seconds of this process and the senders for each gigabyte.
    """

    def __init__(self, case: Case, pids: Sequence[int]) -> None:
        self._case, self._pids = case, pids
        self._warm_up = max(case.senders * case.window, case.total // 10)
        self._lock = threading.Lock()
        self._count = self._counted_before = 0
        self._start_s = self._start_cpu_s = 0.0
        self.gigabytes_per_s = self.cpu_s_per_gb = 0.0
        self._is_over = threading.Event()

    def add(self, count: int) -> None:
        """Count batches; any thread."""
        with self._lock:
            before, self._count = self._count, self._count + count
            if before < self._warm_up <= self._count:
                self._counted_before = self._count
                self._start_s, self._start_cpu_s = time.perf_counter(), self._cpu_s()
            if self._count == self._case.total:
                gigabytes = (self._count - self._counted_before) * self._case.layout.nbytes / 1e9
                self.gigabytes_per_s = gigabytes / (time.perf_counter() - self._start_s)
                self.cpu_s_per_gb = (self._cpu_s() - self._start_cpu_s) / gigabytes
                self._is_over.set()

    def wait(self) -> None:
        """Wait for the last batch."""
        if not self._is_over.wait(LIMIT_S):
            raise TimeoutError(f"{self._count} of {self._case.total} batches within {LIMIT_S} s")

    def _cpu_s(self) -> float:
        # The clock of another process, as `clock_getcpuclockid` of the C library makes its number.
        others = sum(time.clock_gettime(~pid << 3 | 2) for pid in self._pids)
        return time.process_time() + others


class Contender(Protocol):
    """A way to stream batches."""

    name: str

    def send(self, address: Address, case: Case, index: int, credentials: Credentials | None) -> None:
        """Stream the batches of one sender; called in its process."""
        ...

    def receive(
        self, case: Case, start: Callable[[Address], None], clock: Clock, credentials: Credentials | None
    ) -> None:
        """Receive the batches of all senders, which `start` makes stream to an address."""
        ...


# -- plain sockets ---------------------------------------------------------------------------------------


class PlainSockets:
    """Bare sockets, with or without TLS."""

    name = "plain sockets"

    def send(self, address: Address, case: Case, index: int, credentials: Credentials | None) -> None:
        """Stream the batches of one sender."""
        pool = batch_pool(case, index)
        sock = socket.create_connection(address)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if credentials is not None:
            sock = credentials.client_context.wrap_socket(sock, server_hostname=address[0])
        with sock:
            for seq in range(case.batches):
                if seq >= case.window:
                    _receive_acks(sock, 1)
                for array in pool[seq % POOL]:
                    sock.sendall(byte_view(array))
            _receive_acks(sock, min(case.batches, case.window))

    def receive(
        self, case: Case, start: Callable[[Address], None], clock: Clock, credentials: Credentials | None
    ) -> None:
        """Receive the batches of all senders, each in a thread."""
        with socket.create_server(("127.0.0.1", 0)) as listener:
            start(listener.getsockname())
            threads = []
            for _ in range(case.senders):
                sock = listener.accept()[0]
                if credentials is not None:
                    sock = credentials.server_context.wrap_socket(sock, server_side=True)
                thread = threading.Thread(target=_receive_stream, args=(sock, case, clock))
                thread.start()
                threads.append(thread)
            for thread in threads:
                thread.join()


def _receive_stream(sock: socket.socket, case: Case, clock: Clock) -> None:
    slots = [bytearray(case.size_bytes + LABELS * 4) for _ in range(case.window)]
    flags = 0 if isinstance(sock, ssl.SSLSocket) else socket.MSG_WAITALL  # `ssl` allows no flags
    with sock:
        for seq in range(case.batches):
            view = memoryview(slots[seq % case.window])
            while view:
                view = view[sock.recv_into(view, 0, flags) :]
            clock.add(1)
            sock.sendall(ACK.pack(seq))


def _receive_acks(sock: socket.socket, count: int) -> None:
    missing = ACK.size * count
    while missing:
        missing -= len(sock.recv(missing))


# -- gRPC ------------------------------------------------------------------------------------------------


class Grpc:
    """A client stream of messages of bytes, which the receiver reads as arrays without a copy."""

    name = "gRPC"
    _OPTIONS = (("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1))

    def send(self, address: Address, case: Case, index: int, credentials: Credentials | None) -> None:
        """Stream the batches of one sender."""
        import grpc

        pool = batch_pool(case, index)

        def messages() -> Iterator[bytes]:
            for seq in range(case.batches):
                yield b"".join([byte_view(array) for array in pool[seq % POOL]])

        with grpc.insecure_channel(address[0], options=self._OPTIONS) as channel:
            channel.stream_unary("/bench/Stream")(messages(), wait_for_ready=True)

    def receive(
        self, case: Case, start: Callable[[Address], None], clock: Clock, credentials: Credentials | None
    ) -> None:
        """Receive the batches of all senders."""
        import grpc

        def read(messages: Iterator[bytes], _: object) -> bytes:
            for message in messages:
                np.frombuffer(message, np.uint8, case.size_bytes)
                np.frombuffer(message, np.int32, LABELS, case.size_bytes)
                clock.add(1)
            return b""

        handler = grpc.method_handlers_generic_handler(
            "bench", {"Stream": grpc.stream_unary_rpc_method_handler(read)}
        )
        server = grpc.server(ThreadPoolExecutor(case.senders), (handler,), options=self._OPTIONS)
        port = server.add_insecure_port("127.0.0.1:0")
        server.start()
        start((f"127.0.0.1:{port}",))
        clock.wait()
        server.stop(LIMIT_S).wait()  # after the answers to all senders


# -- tf.data service -------------------------------------------------------------------------------------


class TfDataService:
    """A dispatcher in this process, a worker in each sender's; elements are cached, and not compressed."""

    name = "tf.data service"

    def send(self, address: Address, case: Case, index: int, credentials: Credentials | None) -> None:
        """Run a worker until the receiver has all batches."""
        import tensorflow as tf

        service = tf.data.experimental.service
        dispatcher, *control = address
        with socket.create_connection(tuple(control)) as sock:
            worker = service.WorkerServer(service.WorkerConfig(dispatcher_address=dispatcher))
            sock.sendall(b"s")
            sock.recv(1)  # the receiver closes the connection
            del worker

    def receive(
        self, case: Case, start: Callable[[Address], None], clock: Clock, credentials: Credentials | None
    ) -> None:
        """Iterate over the distributed dataset."""
        import tensorflow as tf

        service = tf.data.experimental.service
        dispatcher = service.DispatchServer()
        target = dispatcher.target.removeprefix("grpc://")

        def make_batch(number: Any) -> tuple[Any, Any]:
            shape, seed = (case.size_bytes,), (number, 0)
            x = tf.random.stateless_uniform(shape, seed, maxval=256, dtype=tf.int32)
            return tf.cast(x, tf.uint8), tf.range(LABELS)

        dataset = tf.data.Dataset.range(POOL).map(make_batch).cache().repeat()
        dataset = dataset.apply(
            service.distribute(service.ShardingPolicy.OFF, dispatcher.target, compression=None)
        )
        with socket.create_server(("127.0.0.1", 0)) as listener:
            start((target, *listener.getsockname()))
            connections = [listener.accept()[0] for _ in range(case.senders)]
            for connection in connections:
                connection.recv(1)
            for x, y in dataset.take(case.total):
                x.numpy(), y.numpy()
                clock.add(1)
            for connection in connections:
                connection.close()


# -- Arrow Flight ----------------------------------------------------------------------------------------


class ArrowFlight:
    """A stream of record batches, each with a row of two binary columns (`pip install pyarrow`)."""

    name = "Arrow Flight"

    def send(self, address: Address, case: Case, index: int, credentials: Credentials | None) -> None:
        """Stream the batches of one sender."""
        import pyarrow as pa
        from pyarrow import flight

        def column(array: Array) -> Any:
            offsets = pa.py_buffer(np.array([0, array.nbytes], np.int64))
            return pa.Array.from_buffers(
                pa.large_binary(), 1, [None, offsets, pa.py_buffer(byte_view(array))]
            )

        batches = [
            pa.record_batch([column(array) for array in arrays], ["x", "y"])
            for arrays in batch_pool(case, index)
        ]
        with flight.connect(address[0]) as client:
            descriptor = flight.FlightDescriptor.for_path("batches")
            writer, _ = client.do_put(descriptor, batches[0].schema)
            with writer:
                for seq in range(case.batches):
                    writer.write_batch(batches[seq % POOL])

    def receive(
        self, case: Case, start: Callable[[Address], None], clock: Clock, credentials: Credentials | None
    ) -> None:
        """Receive the batches of all senders."""
        from pyarrow import flight

        class Server(flight.FlightServerBase):  # type: ignore[misc]
            def do_put(self, _: Any, __: Any, reader: Any, ___: Any) -> None:
                for chunk in reader:
                    x, y = (each.buffers()[2] for each in chunk.data.columns)
                    np.frombuffer(x, np.uint8), np.frombuffer(y, np.int32)
                    clock.add(1)

        with Server("grpc://127.0.0.1:0") as server:
            start((f"grpc://127.0.0.1:{server.port}",))
            clock.wait()


LIBRARIES: dict[str, Contender] = {
    "grpc": Grpc(),
    "tensorflow": TfDataService(),
    "pyarrow.flight": ArrowFlight(),
}


def is_installed(module: str) -> bool:
    """Return True if a module can be imported."""
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:
        return False
