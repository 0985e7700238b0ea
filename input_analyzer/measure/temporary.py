"""Temporary files of the user's program: below a folder that the analyzer removes, however a process ends.

TensorFlow's autograph, multiprocessing and the program itself remove theirs when they end by themselves; of a
process that is killed they would stay. What is kept for others, a cache with a fixed name in TMPDIR or data
that was put there before, has to be found where it is, so TMPDIR and `gettempdir()` stay as they are. Only
what Python's `tempfile` gives a random name goes elsewhere: nobody can look for that.
"""

from __future__ import annotations

import os
import tempfile
from contextlib import suppress
from multiprocessing import process
from pathlib import Path
from typing import Any

LONGEST = 70
"""Bytes of a folder's name. The kernel takes 107 for a socket, and programs make sockets in such folders:
multiprocessing names them /pymp-xxxxxxxx/listener-xxxxxxxx."""


def _mount(path: Path) -> Path:
    """Where the file system of a path is mounted: a bind mount of the same one counts, too."""
    with suppress(OSError):
        lines = (
            Path("/proc/self/mountinfo").read_text(encoding="utf-8", errors="surrogateescape").splitlines()
        )
        # proc(5): the mount point is field 5, with blanks as \\040.
        points = [Path(line.split()[4].replace("\\040", " ")) for line in lines]
        resolved = path.resolve()
        return max(
            (point for point in points if resolved.is_relative_to(point)), key=_depth, default=Path("/")
        )
    return Path("/")


def _depth(path: Path) -> int:
    return len(path.parts)


def keep_below(folder: Path) -> None:
    """From here on temporary files of this process and its forks go to a folder while that is there.

    Where the name of the folder is so long that a program might fail with it, they stay where they are; so
    they do where the folder of temporary files is on another mount, as TMPDIR of a container may be: files
    could not be renamed from one to the other, nor might they have room.
    """
    name = os.fspath(folder)
    if len(os.fsencode(name)) > LONGEST or _mount(folder) != _mount(Path(tempfile.gettempdir())):
        return
    settled = tempfile._sanitize_params  # type: ignore[attr-defined]

    def within(prefix: Any, suffix: Any, given: Any) -> tuple[Any, Any, Any, type]:
        prefix, suffix, chosen, kind = settled(prefix, suffix, given)
        if given is None and folder.is_dir():
            chosen = name if kind is str else os.fsencode(name)
        return prefix, suffix, chosen, kind

    tempfile._sanitize_params = within  # type: ignore[attr-defined]
    # Processes that multiprocessing spawns begin with a module of their own, but inherit this.
    process.current_process()._config.setdefault("tempdir", name)  # type: ignore[attr-defined]
