"""Files that appear under their name whole or not at all."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from secrets import token_hex


def replace_file(path: Path, content: str | bytes, mode: int = 0o666) -> None:
    """Writes a file, in one step for whoever reads it; an error leaves what was there.

    Args:
        path: its directory must exist.
        content: text is written as UTF-8.
        mode: permissions of the new file, less those that the umask takes away.

    Raises:
        OSError: the directory cannot be written or is full.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}-{token_hex(4)}")
    data = content.encode() if isinstance(content, str) else content
    try:
        with open(temporary, "wb", opener=lambda name, flags: os.open(name, flags, mode)) as file:
            file.write(data)
        temporary.replace(path)
    except BaseException:
        with suppress(OSError):  # the first error is the one to tell
            temporary.unlink(missing_ok=True)
        raise
