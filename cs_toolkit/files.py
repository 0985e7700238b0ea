"""Files that appear under their name whole or not at all."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from secrets import token_hex


@contextmanager
def replacing(path: Path, *, durable: bool = False) -> Iterator[Path]:
    """A path beside a file for the body to write, which takes the file's place at its end.

    An error leaves what was there.

    Args:
        path: its directory must exist.
        durable: it is on the disk before it has its name, and its name too at the end.

    Raises:
        OSError: the directory cannot be written or is full.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}-{token_hex(4)}")
    try:
        yield temporary
        if durable:
            _sync(temporary)
        temporary.replace(path)
        if durable:
            _sync(path.parent)
    except BaseException:
        with suppress(OSError):  # the first error is the one to tell
            temporary.unlink(missing_ok=True)
        raise


def replace_file(path: Path, content: str | bytes | memoryview, mode: int = 0o666) -> None:
    """Writes a file, in one step for whoever reads it; an error leaves what was there.

    Args:
        path: its directory must exist.
        content: text is written as UTF-8.
        mode: permissions of the new file, less those that the umask takes away.

    Raises:
        OSError: the directory cannot be written or is full.
    """
    data = content.encode() if isinstance(content, str) else content
    with (
        replacing(path) as temporary,
        open(temporary, "wb", opener=lambda name, flags: os.open(name, flags, mode)) as file,
    ):
        file.write(data)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
