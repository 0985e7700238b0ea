"""Atomic replacement of files and links, reading of files by others, and the user's cache directory."""

from __future__ import annotations

import errno
import json
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from secrets import token_hex
from typing import Any

from cs_toolkit.temporary import temporary_file

MAX_JSON_BYTES = 256 << 20


@contextmanager
def replacing(path: Path, mode: int = 0o666, *, durable: bool = False) -> Iterator[Path]:
    """Yield an empty file next to a file for the body to write; it replaces the file at the end.

    An error in the body leaves the file as it was.

    Args:
        path: of the file; its directory must exist.
        mode: permissions of the new file, without those in the umask.
        durable: sync the file before the replacement, and the directory after it.

    Raises:
        OSError: the directory is not writable or is full.
    """
    with temporary_file(path, mode) as temporary:
        yield temporary
        if durable:
            sync(temporary)
        temporary.replace(path)
        if durable:
            sync(path.parent)


def replace_file(
    path: Path, content: str | bytes | memoryview, mode: int = 0o666, *, durable: bool = False
) -> None:
    """Write a file atomically; an error leaves it as it was.

    Args:
        path: of the file; its directory must exist.
        content: text is encoded as UTF-8.
        mode: as in `replacing`.
        durable: as in `replacing`.

    Raises:
        OSError: the directory is not writable or is full.
    """
    data = content.encode() if isinstance(content, str) else content
    with replacing(path, mode, durable=durable) as temporary, temporary.open("wb") as file:
        file.write(data)


def create_symlink(
    src: str | os.PathLike[str], dst: str | os.PathLike[str], num_retries: int = 5, **kwargs: Any
) -> None:
    """Create a symbolic link, replacing an existing one atomically.

    Args:
        src: Path of the link.
        dst: Target of the link.
        num_retries: Accepted without effect.
        **kwargs: Keyword arguments of `Path.symlink_to`.
    """
    link = Path(src)
    # Several processes may do this simultaneously, and readers always find a link.
    new_link = link.with_name(f".{link.name}.{token_hex(4)}")
    new_link.symlink_to(dst, **kwargs)
    try:
        new_link.replace(link)
    except OSError:
        new_link.unlink()
        raise


def sync(path: Path) -> None:
    """Wait until a file, or the names in a directory, are on the disk.

    Raises:
        OSError: the disk is full or has a defect.
    """
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def user_cache_dir() -> Path:
    """Return the user's cache directory, following the XDG base directory specification."""
    base = os.environ.get("XDG_CACHE_HOME", "")
    # Not Path.home(), which raises where a container's user has no home directory.
    return Path(base) if Path(base).is_absolute() else Path(os.path.expanduser("~")) / ".cache"  # noqa: PTH111


def keep_newest(directory: Path, limit_bytes: int) -> None:
    """Delete the files of a directory with the oldest modification times until the rest fits the limit."""
    entries = []
    for path in directory.iterdir():
        # Another process that uses the same directory may have just removed it.
        with suppress(FileNotFoundError):
            status = path.stat()
            entries.append((status.st_mtime_ns, status.st_size, path))
    total = sum(size for _, size, _ in entries)
    for _, size, path in sorted(entries):
        if total <= limit_bytes:
            break
        path.unlink(missing_ok=True)
        total -= size


def parse_json(text: str | bytes) -> Any:
    """Parse JSON.

    Raises:
        ValueError: the text is not JSON, or nested too deep.
    """
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("the JSON is nested too deep") from None


def read_file(path: Path, max_bytes: int) -> bytes:
    """Read a file that others may have placed there.

    Raises:
        OSError: it cannot be read, is larger, or no regular file.
    """
    # Opening a pipe waits for a writer, and devices have no end.
    with open(path, "rb", opener=_open_without_waiting) as file:
        status = os.fstat(file.fileno())
        if not stat.S_ISREG(status.st_mode):
            raise OSError(errno.EINVAL, "not a regular file", str(path))
        if status.st_size > max_bytes:
            text = f"size is {status.st_size} bytes, expected at most {max_bytes}"
            raise OSError(errno.EFBIG, text, str(path))
        return file.read(max_bytes)


def _open_without_waiting(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NONBLOCK)


def read_json(path: Path) -> Any:
    """Read a JSON file.

    Raises:
        OSError: it cannot be read, has over 256 MiB, or is no regular file.
        ValueError: it is not JSON, or nested too deep.
    """
    return parse_json(read_file(path, MAX_JSON_BYTES))
