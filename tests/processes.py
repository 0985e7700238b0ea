"""Environments of processes, waits for conditions, and inspection of processes on this machine."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

TIMEOUT_S = 60.0
_OF_JOBS = ("CSRUN_", "TF_CONFIG", "SLURM_", "DEF_", "PYTHON", "MOUNT_DIRS", "SINGULARITY_", "GRES_", "CS_")
_LISTENING = "0A"  # in the column `st` of /proc/net/tcp


def clean_environment(*prefixes: str) -> dict[str, str]:
    """Return the environment without variables of jobs, sites and Python.

    Args:
        prefixes: Of further variables that are left out.
    """
    return {name: text for name, text in os.environ.items() if not name.startswith((*_OF_JOBS, *prefixes))}


def wait_until(
    condition: Callable[[], object], describe: Callable[[], object] = str, timeout_s: float = TIMEOUT_S
) -> float:
    """Poll a condition, and fail the test after the timeout.

    Args:
        condition: Returns a true value when the wait is over.
        describe: Returns what the failure shows.
        timeout_s: How long to wait at most.

    Returns:
        The seconds until the condition was true.
    """
    start_s = time.monotonic()
    while not condition():
        assert time.monotonic() - start_s < timeout_s, f"not true after {timeout_s:g} s: {describe()}"
        time.sleep(0.01)
    return time.monotonic() - start_s


def is_running(pid: int) -> bool:
    """Return whether a process exists and has not ended; a zombie has."""
    with suppress(FileNotFoundError, ProcessLookupError):
        return "State:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    return False


def list_processes(*variables: bytes) -> list[int]:
    """Return the running processes with all of these NAME=value in their environment.

    Processes in other PID namespaces are included.
    """
    found = []
    for entry in Path("/proc").iterdir():
        with suppress(OSError):
            if entry.name.isdigit() and set(variables) <= set((entry / "environ").read_bytes().split(b"\0")):
                found.append(int(entry.name))
    return found


def kill_processes(list_pids: Callable[[], list[int]]) -> None:
    """Kill the listed processes until none is left."""
    while pids := list_pids():
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.01)


def listening_sockets(pid: int) -> Iterator[tuple[str, int]]:
    """Yield address, as the kernel writes it, and port of each TCP socket at which a process listens."""
    own = set()
    for link in Path(f"/proc/{pid}/fd").iterdir():
        with suppress(OSError):  # closed meanwhile
            own.add(link.readlink().name)
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/{pid}/net/{table}").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == _LISTENING and f"socket:[{fields[9]}]" in own:
                address, _, port = fields[1].partition(":")
                yield address, int(port, 16)
