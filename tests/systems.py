"""A CS system in a separate process, for tests of programs that need one."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from cs_runtime.embedded_system import START_TIMEOUT_S, read_ready_file

# Environment variable with a directory in which all systems of `running_system` store compiled programs.
CACHE_VARIABLE = "CS_SYSTEM_TESTING_CACHE"
_PARTS = ("cs_memoryx", "cs_wafer_")
_STOP_TIMEOUT_S = 10.0


@dataclass(frozen=True)
class RunningSystem:
    """A system that accepts calls.

    Attributes:
        address: Address for `--cs_ip`.
        data_address: Address of the data plane.
        process: The server.
        log_file: Its stderr.
        status_page: URL of its status page; empty without `--http-port`.
    """

    address: str
    data_address: str
    process: subprocess.Popen[bytes]
    log_file: Path
    status_page: str = ""

    def log(self) -> str:
        """Return the server's log so far."""
        return self.log_file.read_text()


def parts_of(pid: int, names: tuple[str, ...] = _PARTS) -> dict[int, str]:
    """Return pid and name of the running parts that a process has started: wafers and MemoryX, or others."""
    found = {}
    for child in descendants_of(pid):
        with suppress(OSError):  # it has ended
            found[child] = Path(f"/proc/{child}/comm").read_text().strip()
    return {child: name for child, name in found.items() if name.startswith(names)}


def descendants_of(pid: int) -> list[int]:
    """Return the processes that a process has started, and those that these have started."""
    found = _children(pid)
    for child in found:
        found += _children(child)
    return found


def user_cpu_s(pid: int) -> float:
    """Return the CPU time of a process and its descendants in user mode (proc(5): utime, field 14)."""
    ticks = 0
    for each in (pid, *descendants_of(pid)):
        with suppress(OSError):  # it has ended
            ticks += int(Path(f"/proc/{each}/stat").read_bytes().rpartition(b")")[2].split()[11])
    return ticks / os.sysconf("SC_CLK_TCK")


def _children(pid: int) -> list[int]:
    found: list[int] = []
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        with suppress(OSError):
            found += map(int, task.read_text().split())
    return found


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
            page = content.get("status_page", "")
            yield RunningSystem(content["address"], content["data_address"], process, log_file, page)
        finally:
            process.terminate()
            try:
                process.wait(_STOP_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
