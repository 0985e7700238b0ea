"""The process of a wafer on this machine, as whoever starts it sees it."""

from __future__ import annotations

import os
import subprocess
import sys

from cs_system.own_process import END_TIMEOUT_S, end_process


class WaferProcess:
    """A wafer of a group. It ends with `end`, when the CS system hangs up, and with this process.

    Args:
        leader: HOST:PORT where the CS system waits for its wafers.
        token: Its secret.
        rank: Of the wafer in its group.

    Attributes:
        host: Empty: it is on the machine of whoever asks.
    """

    host = ""

    def __init__(self, leader: str, token: str, rank: int) -> None:
        command = [sys.executable, "-m", "cs_system", "wafer", f"--leader={leader}", f"--rank={rank}"]
        self._process = subprocess.Popen(
            command,
            # Not on the command line, which every user of the machine sees.
            env={**os.environ, "CS_WAFER_TOKEN": token},
            # Its end is the end of this process.
            stdin=subprocess.PIPE,
            start_new_session=True,
        )

    @property
    def pid(self) -> int:
        """Of the process."""
        return self._process.pid

    @property
    def has_ended(self) -> bool:
        """Whether it has."""
        return self._process.poll() is not None

    @property
    def exit_code(self) -> int | None:
        """See `Wafer`."""
        return self._process.poll()

    def kill(self) -> None:
        """Ends it, whatever it does, and does not wait."""
        self._process.kill()

    def wait(self) -> None:
        """Until it has ended."""
        self._process.wait()

    def end(self, timeout_s: float = END_TIMEOUT_S) -> None:
        """Ends it, whatever it waits for."""
        end_process(self._process, timeout_s)
