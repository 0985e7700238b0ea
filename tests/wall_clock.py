"""A wall clock that a test moves, as when the clock of a machine is set."""

from __future__ import annotations

import shutil
import struct
import subprocess
from pathlib import Path


class WallClock:
    """The wall clock of processes with its environment; their monotonic clock is the real one.

    Args:
        directory: For the library that these processes load, and for its offset.
    """

    COMPILER = shutil.which("cc")

    def __init__(self, directory: Path) -> None:
        self._library, self._file = directory / "wall_clock.so", directory / "offset"
        source = Path(__file__).with_name("wall_clock.c")
        assert self.COMPILER is not None
        flags = ["-shared", "-fPIC", "-O1", "-Wall", "-Werror", "-o", str(self._library)]
        subprocess.run([self.COMPILER, *flags, str(source)], check=True)
        self._file.write_bytes(struct.pack("=q", 0))

    def environment(self) -> dict[str, str]:
        """Return the variables of its processes."""
        return {"LD_PRELOAD": str(self._library), "SOAK_CLOCK": str(self._file)}

    def jump(self, seconds: float) -> None:
        """Set the clock to the real time and some seconds."""
        with self._file.open("r+b", buffering=0) as file:  # which processes have mapped
            file.write(struct.pack("=q", round(1e9 * seconds)))
