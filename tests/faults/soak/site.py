"""A CS system with its MemoryX, which can be killed and started again, and the networks between it and jobs.

Processes listen on one address of loopback, and peers connect to another one, at which a `Network` forwards
the bytes, until it cuts or damages them. All keep their ports when they are started again.
"""

from __future__ import annotations

import os
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from random import Random
from types import TracebackType
from typing import Self

from cs_runtime.embedded_system import START_TIMEOUT_S, read_ready_file
from cs_system.client import SystemClient, parse_address
from cs_system.errors import CsSystemError
from cs_system.status import SystemInfo
from tests.certificates import SiteCertificates
from tests.processes import listening_sockets, wait_until
from tests.systems import CACHE_VARIABLE, descendants_of, parts_of

SERVER, NETWORK = "127.0.0.2", "127.0.0.3"
_RESET = struct.pack("ii", 1, 0)  # SO_LINGER: close() sends RST


class Network:
    """Forwards the connections to a port, until it is asked to cut them or to change a bit.

    Args:
        port: At `NETWORK`, and of the process at `SERVER`.
    """

    def __init__(self, port: int) -> None:
        self.port = port
        self._lock = threading.Lock()
        self._sockets: set[socket.socket] = set()
        self._damage: Random | None = None
        self._listener = socket.create_server((NETWORK, port))
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._listener.accept()
            except OSError:
                return
            try:
                far = socket.create_connection((SERVER, self.port), timeout=5)
            except OSError:  # the process is dead: as if nobody listened
                near.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
                near.close()
                continue
            far.settimeout(None)
            with self._lock:
                self._sockets |= {near, far}
            ended = threading.Barrier(2, action=lambda near=near, far=far: self._close(near, far))
            for source, sink in ((near, far), (far, near)):
                threading.Thread(target=self._forward, args=(source, sink, ended), daemon=True).start()

    def _forward(self, source: socket.socket, sink: socket.socket, ended: threading.Barrier) -> None:
        with suppress(OSError):
            while data := source.recv(1 << 16):
                with self._lock:
                    random, self._damage = self._damage, None
                if random is not None:
                    changed = bytearray(data)
                    changed[random.randrange(len(changed))] ^= 1 << random.randrange(8)
                    data = bytes(changed)
                sink.sendall(data)
        for sock, end in ((sink, socket.SHUT_WR), (source, socket.SHUT_RD)):
            with suppress(OSError):
                sock.shutdown(end)
        ended.wait()

    def _close(self, *sockets: socket.socket) -> None:
        with self._lock:
            self._sockets -= {*sockets}
        for sock in sockets:
            sock.close()

    def cut(self) -> bool:
        """End all connections in the middle of what they carry; return False if there are none."""
        with self._lock:
            found = bool(self._sockets)
            for sock in self._sockets:
                with suppress(OSError):
                    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
                    sock.shutdown(socket.SHUT_RDWR)
        return found

    def damage(self, seed: int) -> None:
        """Change a bit of the next bytes, in either direction."""
        self._damage = Random(seed)

    def end_damage(self) -> bool:
        """Change nothing from now on; return whether a bit has been changed."""
        with self._lock:
            damaged, self._damage = self._damage is None, None
        return damaged

    def close(self) -> None:
        """End all connections, and accept no new one."""
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.cut()


class Site:
    """A CS system and, if it is a separate process, its MemoryX.

    Args:
        directory: For all files.
        certificates: For its processes; None without TLS.
        shares_memory: Batches may come in shared memory.
        standing: MemoryX is a separate process.
        environment: Variables of its processes.

    Attributes:
        address: For `--cs_ip`.
        disk: Directory in which MemoryX stores weights.
        networks: Those between its processes and their peers, by the names of victims.
    """

    def __init__(
        self,
        directory: Path,
        certificates: SiteCertificates | None,
        shares_memory: bool,
        standing: bool,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self._directory, self._environment = directory, dict(environment or {})
        self.disk, self._temporary = directory / "memoryx", directory / "tmp"
        for folder in (self.disk, self._temporary):
            folder.mkdir(parents=True, exist_ok=True)
        names = ("control", "data", *(["memoryx"] if standing else []))
        self.networks = {
            name: Network(port) for name, port in zip(names, _free_ports(len(names)), strict=True)
        }
        self.address = f"{NETWORK}:{self.networks['control'].port}"
        certs = []
        if certificates is not None:
            certs = [f"--certs={certificates.issue('cs1', 'system', [SERVER, NETWORK]).directory}"]
        common = [f"--host={SERVER}", *certs, f"--memoryx-dir={self.disk}"]
        secret = f"--memoryx-secret-file={directory / 'memoryx.secret'}"
        self._commands = {
            "system": [
                *("serve", f"--port={self.networks['control'].port}", "--num-csx=2", *common, secret),
                f"--data-port={self.networks['data'].port}",
                f"--advertise={NETWORK}",
                f"--ready-file={directory / 'ready.json'}",
                f"--cache-dir={os.environ.get(CACHE_VARIABLE, directory / 'cache')}",
                f"--state-dir={directory / 'state'}",
                "--threads=1",
                *([] if shares_memory else ["--no-shm"]),
            ]
        }
        if standing:
            port = self.networks["memoryx"].port
            self._commands["system"].append(f"--memoryx={NETWORK}:{port}")
            self._commands["memoryx"] = ["memoryx", "serve", f"--port={port}", *common, secret, "--threads=1"]
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._client: SystemClient | None = None
        self.start()
        wait_until(lambda: len(self.pids("engine")) == 1)
        self._listening, self._shared_memory = self._listeners(), self._count_shared_memory()

    def start(self) -> None:
        """Start the processes that do not run."""
        for name in ("memoryx", "system"):
            process = self._processes.get(name)
            if name in self._commands and (process is None or process.poll() is not None):
                ready = self._directory / "ready.json"
                if name == "system":
                    ready.unlink(missing_ok=True)
                with (self._directory / f"{name}.log").open("ab") as log:
                    self._processes[name] = process = subprocess.Popen(
                        [sys.executable, "-m", "cs_system", *self._commands[name]],
                        env={**os.environ, "TMPDIR": str(self._temporary), **self._environment},
                        stderr=log,
                        stdin=subprocess.DEVNULL,
                    )
                if name == "system":
                    read_ready_file(ready, process, START_TIMEOUT_S)
                else:
                    wait_until(lambda process=process: list(listening_sockets(process.pid)), self.log)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for process in self._processes.values():
            process.terminate()
        for process in self._processes.values():
            with suppress(subprocess.TimeoutExpired):
                process.wait(15)
            process.kill()
            process.wait()
        for network in self.networks.values():
            network.close()

    def pids(self, victim: str) -> list[int]:
        """Return the processes of a victim that run; of the engine, that of the next run too."""
        if victim in self._processes:
            process = self._processes[victim]
            return [process.pid] if process.poll() is None else []
        name = {"memoryx": "cs_memoryx", "engine": "cs_engine", "wafer": "cs_wafer_1"}[victim]
        return list(parts_of(self._processes["system"].pid, (name,)))

    def send(self, victim: str, number: int) -> bool:
        """Send a signal to a victim, wait for the end of a killed service; return whether it was running."""
        pids = self.pids(victim)
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(pid, number)
        if victim in self._processes and number in (signal.SIGKILL, signal.SIGTERM):
            self._processes[victim].wait(30)
        return bool(pids)

    def info(self) -> SystemInfo | None:
        """Return the state of the system; None if it does not answer."""
        try:
            if self._client is None:
                self._client = SystemClient(parse_address(f"{SERVER}:{self.networks['control'].port}"), 5.0)
            return self._client.info()
        except CsSystemError:
            if self._client is not None:
                self._client.close()
            self._client = None
            return None

    def log(self) -> str:
        """Return the newest lines of the logs."""
        return "\n".join(file.read_text()[-4000:] for file in sorted(self._directory.glob("*.log")))

    def left(self) -> Iterable[str]:
        """Yield what an idle system must not have, with a reason."""
        info = self.info()
        if info is None or info.state != "IDLE":
            yield f"the system is {info.state if info else 'dead'}"
        root = self._processes["system"].pid
        if parts := parts_of(root):
            yield f"processes of the run: {parts}"
        spares = len(self.pids("engine"))
        if spares != 1:
            yield f"{spares} engines, expected the one for the next run"
        for folder in (self.disk, self._temporary):
            yield from (f"file {file}" for file in folder.rglob("*") if file.is_file())
        if more := self._listeners() - self._listening:
            yield f"sockets that listen: {more}"
        if (count := self._count_shared_memory()) > self._shared_memory:
            yield f"{count} files of shared memory, expected {self._shared_memory}"

    def wait_until_idle(self, limit_s: float) -> None:
        """Wait until nothing is left of a run."""

        def is_idle() -> bool:
            time.sleep(0.1)
            return not [*self.left()]

        wait_until(is_idle, lambda: [*self.left(), self.log()], limit_s)

    def _count_shared_memory(self) -> int:
        count = 0
        for process in self._processes.values():
            for pid in (process.pid, *descendants_of(process.pid)):
                with suppress(OSError):
                    count += sum(
                        "memfd:" in str(link.readlink()) for link in Path(f"/proc/{pid}/fd").iterdir()
                    )
        return count

    def _listeners(self) -> set[tuple[str, int]]:
        found: set[tuple[str, int]] = set()
        for process in self._processes.values():
            for pid in (process.pid, *descendants_of(process.pid)):
                with suppress(OSError):
                    found |= set(listening_sockets(pid))
        return found


def _free_ports(count: int) -> list[int]:
    sockets = [socket.create_server((SERVER, 0)) for _ in range(count)]
    try:
        return [each.getsockname()[1] for each in sockets]
    finally:
        for each in sockets:
            each.close()
