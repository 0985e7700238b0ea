"""A simulated CS system of a program's own, where it names none: on loopback, and ended with the program.

As a module it is the process of that system: `cs_system serve` that ends when the program does, however that
ends.
"""

from __future__ import annotations

import atexit
import logging
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from contextlib import suppress
from pathlib import Path

from cs_runtime.errors import EmbeddedSystemError
from cs_system.commands import main as cs_system_main
from cs_system.testing import START_TIMEOUT_S, read_ready_file
from csrun.tasks.environment import program_environment, this_toolkit
from csrun.tasks.processes import signalled_at_parents_death

log = logging.getLogger("cs_runtime")

_END_TIMEOUT_S = 10.0
_LAST_LINES = 5


class EmbeddedSystem:
    """A CS system in a process of its own, which starts now and is there when its address is asked for.

    Args:
        log_file: Gets what the system says.
        num_csx: Systems of the group that share a batch.
    """

    def __init__(self, log_file: Path, num_csx: int = 1) -> None:
        self._log_file, self._owner = log_file, os.getpid()
        self._directory = Path(tempfile.mkdtemp(prefix="cs-system-"))
        self._ready = self._directory / "ready.json"
        self._address: str | None = None
        flags = ["--port=0", f"--ready-file={self._ready}", f"--num-csx={num_csx}"]
        log_file.parent.mkdir(parents=True, exist_ok=True)
        with log_file.open("wb") as log_output:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", __name__, "serve", *flags],
                env=program_environment(os.environ, this_toolkit()).apply(os.environ),
                stdin=subprocess.DEVNULL,
                stdout=log_output,
                stderr=log_output,
                start_new_session=True,  # Ctrl-C is for the program, which then ends the system
            )
        atexit.register(self.end)

    @property
    def address(self) -> str:
        """IP:PORT.

        Raises:
            EmbeddedSystemError: it did not start.
        """
        if self._address is None:
            try:
                self._address = str(read_ready_file(self._ready, self._process, START_TIMEOUT_S)["address"])
            except (RuntimeError, TimeoutError) as error:
                lines = self._log_file.read_text(errors="replace").splitlines()[-_LAST_LINES:]
                raise EmbeddedSystemError(self._log_file, "\n".join([str(error), *lines])) from error
            log.info(
                "no CS system is named: using a simulated one of this program's own at %s, log in %s",
                self._address,
                self._log_file,
            )
        return self._address

    def end(self) -> None:
        """Ends it; later calls, and those in children of this process, do nothing."""
        if os.getpid() != self._owner:
            return
        with suppress(ProcessLookupError):
            self._process.terminate()
        try:
            self._process.wait(_END_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        shutil.rmtree(self._directory, ignore_errors=True)


def main() -> None:
    """Serves until its parent ends or ends it."""
    signalled_at_parents_death(signal.SIGTERM)
    cs_system_main()


if __name__ == "__main__":
    main()
