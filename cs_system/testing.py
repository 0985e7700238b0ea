"""A CS system in a separate process, for tests and benchmarks of programs that need one."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

START_TIMEOUT_S = 60.0
# Environment variable with a directory in which all systems of `running_system` store compiled programs.
CACHE_VARIABLE = "CS_SYSTEM_TESTING_CACHE"
_PARTS = ("cs_memoryx", "cs_wafer_")
_STOP_TIMEOUT_S = 10.0
_POLL_S = 0.02


@dataclass(frozen=True)
class RunningSystem:
    """A system that accepts calls.

    Attributes:
        address: Address for `--cs_ip`.
        data_address: Address of the data plane.
        process: The server.
        log_file: Its stderr.
    """

    address: str
    data_address: str
    process: subprocess.Popen[bytes]
    log_file: Path

    def log(self) -> str:
        """Return the server's log so far."""
        return self.log_file.read_text()


def parts_of(pid: int) -> dict[int, str]:
    """Return pid and name of the running wafers and MemoryX processes that a process has started."""
    found = {}
    queue = [pid]
    while queue:
        for child in _children(queue.pop()):
            queue.append(child)
            with suppress(OSError):  # it has ended
                found[child] = Path(f"/proc/{child}/comm").read_text().strip()
    return {child: name for child, name in found.items() if name.startswith(_PARTS)}


def _children(pid: int) -> list[int]:
    found: list[int] = []
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        with suppress(OSError):
            found += map(int, task.read_text().split())
    return found


def read_ready_file(path: Path, process: subprocess.Popen[bytes], timeout_s: float) -> dict[str, Any]:
    """Wait for the ready file of a server, and read it.

    Raises:
        RuntimeError: the process ended.
        TimeoutError: there was no file in time.
    """
    deadline = time.monotonic() + timeout_s
    while not path.exists():
        if process.poll() is not None:
            raise RuntimeError(f"the CS system ended with exit code {process.returncode} before it was ready")
        if time.monotonic() > deadline:
            raise TimeoutError(f"the CS system was not ready within {timeout_s:g} s")
        time.sleep(_POLL_S)
    content: dict[str, Any] = json.loads(path.read_text())
    return content


@contextmanager
def running_system(directory: Path, flags: Sequence[str] = ()) -> Iterator[RunningSystem]:
    """Run a system on free ports of loopback for the body.

    Args:
        directory: For its ready file and log, and its cache unless `CACHE_VARIABLE` names another.
        flags: More flags of `cs_system serve`, which override those given here.
    """
    ready, log_file = directory / "ready.json", directory / "cs_system.log"
    cache = os.environ.get(CACHE_VARIABLE) or directory / "cache"
    command = [sys.executable, "-m", "cs_system", "serve", "--port=0", f"--ready-file={ready}"]
    with log_file.open("wb") as log:
        process = subprocess.Popen(
            [*command, f"--cache-dir={cache}", *flags], stderr=log, stdin=subprocess.DEVNULL
        )
        try:
            content = read_ready_file(ready, process, START_TIMEOUT_S)
            yield RunningSystem(content["address"], content["data_address"], process, log_file)
        finally:
            process.terminate()
            try:
                process.wait(_STOP_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
