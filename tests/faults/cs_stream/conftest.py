"""Worker processes with scheduled faults, and a bad network; both end with the test."""

import json
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.loopback import Loopback

MODULE = "tests.faults.cs_stream.worker_process"
StartProcess = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture
def start_process() -> Iterator[StartProcess]:
    """Start a worker process of a run; keywords are the orders of `worker_process.py`."""
    processes: list[subprocess.Popen[str]] = []

    def start(run: Loopback, worker: int, count: int, **orders: Any) -> "subprocess.Popen[str]":
        host, port = run.receiver.address
        order = {"host": host, "port": port, "worker": worker, "num_workers": run.spec.num_workers}
        process = subprocess.Popen(
            [sys.executable, "-m", MODULE, json.dumps(order | {"count": count} | orders)],
            cwd=Path(__file__).parents[3],
            stdout=subprocess.PIPE,
            text=True,
        )
        processes.append(process)
        return process

    yield start
    for process in processes:
        if process.poll() is None:
            process.send_signal(signal.SIGKILL)
        process.communicate(timeout=30)


class BadNetwork:
    """Lies between senders and a data port, and breaks connections at scheduled bytes.

    Args:
        target: the data port.
        cut_after: entry k: how many bytes of the k-th connection reach the system before it breaks.
        flip_at: entry k: offset of a byte of the k-th connection that is changed on the way to the system.
        flip_back_at: entry k: the same on the way back.
        flip: bits of such a byte that are changed.

    Attributes:
        connections: number of connections.
        recorded: entry k: what the k-th connection has sent to the system.
        answered: entry k: what the system has sent to it.
    """

    def __init__(
        self,
        target: tuple[str, int],
        cut_after: tuple[int, ...] = (),
        flip_at: tuple[int, ...] = (),
        flip_back_at: tuple[int, ...] = (),
        flip: int = 0x10,
    ) -> None:
        self.target = target
        self.cut_after, self.flip_at = list(cut_after), list(flip_at)
        self.flip_back_at, self.flip = list(flip_back_at), flip
        self.recorded: list[bytearray] = []
        self.answered: list[bytearray] = []
        self.connections = 0
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.address: tuple[str, int] = self.listener.getsockname()
        self.sockets: list[socket.socket] = []
        self.threads = [threading.Thread(target=self.accept_all)]
        self.threads[0].start()

    def accept_all(self) -> None:
        while True:
            try:
                near, _ = self.listener.accept()
            except OSError:
                return
            far = socket.create_connection(self.target)
            self.sockets += [near, far]
            cut = self.cut_after.pop(0) if self.cut_after else None
            flip = self.flip_at.pop(0) if self.flip_at else None
            back = self.flip_back_at.pop(0) if self.flip_back_at else None
            self.connections += 1
            self.recorded.append(bytearray())
            self.answered.append(bytearray())
            orders = ((near, far, cut, flip, self.recorded[-1]), (far, near, None, back, self.answered[-1]))
            for order in orders:
                thread = threading.Thread(target=self.forward, args=order)
                self.threads.append(thread)
                thread.start()

    def forward(
        self,
        source: socket.socket,
        sink: socket.socket,
        cut: int | None,
        flip: int | None,
        recorded: bytearray,
    ) -> None:
        passed = 0
        try:
            while data := bytearray(source.recv(1 << 16)):
                if flip is not None and passed <= flip < passed + len(data):
                    data[flip - passed] ^= self.flip
                if cut is not None and passed + len(data) >= cut:
                    sink.sendall(data[: cut - passed])
                    break
                recorded += data
                sink.sendall(data)
                passed += len(data)
        except OSError:
            pass
        self.hang_up(source, sink)

    @staticmethod
    def hang_up(*sockets: socket.socket) -> None:
        for sock in sockets:
            try:
                sock.shutdown(socket.SHUT_RDWR)
            except OSError:
                continue

    def close(self) -> None:
        """No connection lasts, and no new one is made."""
        self.hang_up(self.listener)
        self.listener.close()
        self.threads[0].join()
        self.hang_up(*self.sockets)
        for thread in self.threads:
            thread.join()
        for sock in self.sockets:
            sock.close()


@pytest.fixture
def bad_network() -> Iterator[Callable[..., BadNetwork]]:
    """Make a `BadNetwork`."""
    made: list[BadNetwork] = []

    def make(*args: Any, **options: Any) -> BadNetwork:
        made.append(BadNetwork(*args, **options))
        return made[-1]

    yield make
    for network in made:
        network.close()
