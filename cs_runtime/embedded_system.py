"""A simulated CS system on loopback for a program that names none; it ends with the program.

Run as a module, it is the process of that system: `cs_system serve` that ends when its parent ends.
"""

from __future__ import annotations

import atexit
import json
import logging
import os
import signal
import subprocess
import sys
import time
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

from cs_runtime import files
from cs_runtime.errors import EmbeddedSystemError
from cs_system.commands import main as cs_system_main
from cs_toolkit.temporary import temporary_directory
from csrun.tasks.environment import program_environment, this_toolkit
from csrun.tasks.processes import signal_on_parent_death

log = logging.getLogger("cs_runtime")

START_TIMEOUT_S = 60.0
_END_TIMEOUT_S = 10.0
_POLL_S = 0.02
_LAST_LINES = 5


class EmbeddedSystem:
    """A CS system in a separate process; the constructor starts it, `address` waits until it is ready.

    Args:
        log_file: File for the output of the system.
        wafers: Number of wafers.

    Raises:
        ModelDirError: The directory of `log_file` is not writable.
    """

    def __init__(self, log_file: Path, wafers: int = 1) -> None:
        files.check_writable(log_file.parent)
        self._log_file, self._owner = log_file, os.getpid()
        self._directory = ExitStack()
        self._ready = self._directory.enter_context(temporary_directory("cs-system-")) / "ready.json"
        self._address: str | None = None
        flags = ["--port=0", f"--ready-file={self._ready}", f"--num-csx={wafers}"]
        with log_file.open("wb") as log_output:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", __name__, "serve", *flags],
                env=program_environment(os.environ, this_toolkit()).apply(os.environ),
                stdin=subprocess.DEVNULL,
                stdout=log_output,
                stderr=log_output,
                start_new_session=True,  # Ctrl-C goes to the program only, which then ends the system
            )
        atexit.register(self.end)

    @property
    def address(self) -> str:
        """Address of the system as IP:PORT.

        Raises:
            EmbeddedSystemError: The system did not start.
        """
        if self._address is None:
            try:
                self._address = str(read_ready_file(self._ready, self._process, START_TIMEOUT_S)["address"])
            except (RuntimeError, TimeoutError) as error:
                lines = self._log_file.read_text(errors="replace").splitlines()[-_LAST_LINES:]
                raise EmbeddedSystemError(self._log_file, "\n".join([str(error), *lines])) from error
            log.info("the embedded CS system is at %s, log in %s", self._address, self._log_file)
        return self._address

    def end(self) -> None:
        """End the system; later calls, and calls in child processes, do nothing."""
        # A forked child inherits the exit handler, and must not end the system of its parent.
        if os.getpid() != self._owner:
            return
        with suppress(ProcessLookupError):
            self._process.terminate()
        try:
            self._process.wait(_END_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._directory.close()


def log_name(wafers: int) -> str:
    """Return the name of the log of an embedded system with a number of wafers."""
    return "cs_system.log" if wafers == 1 else f"cs_system_{wafers}.log"


_shared: dict[int, EmbeddedSystem] = {}


def shared_system(log_file: Path, wafers: int = 1) -> EmbeddedSystem:
    """Return the embedded system of this process, which the first call starts.

    Args:
        log_file: File for the output of the system, if this call starts it.
        wafers: Number of wafers; each number has a separate system.
    """
    if wafers not in _shared:
        _shared[wafers] = EmbeddedSystem(log_file, wafers)
    return _shared[wafers]


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


def main() -> None:
    """Serve until the parent process ends."""
    signal_on_parent_death(signal.SIGTERM)
    cs_system_main()


if __name__ == "__main__":
    main()
