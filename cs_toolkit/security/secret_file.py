"""A secret in a file that only its owner can read, made when it is first needed.

Processes on several machines share such a secret through a file system that they share. Only the standard
library is imported, because an agent has nothing else.
"""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import stat
from collections.abc import Mapping
from pathlib import Path

from cs_toolkit.errors import ToolkitError

_SECRET = re.compile(r"[0-9a-f]{64}")


class SecretFileError(ToolkitError):
    """A file with a secret cannot be used."""


def user_secret_file(name: str, environment: Mapping[str, str] | None = None) -> Path:
    """Return the path of a secret in the user's directory of configuration.

    Raises:
        SecretFileError: the user has no such directory.
    """
    env = os.environ if environment is None else environment
    folder = env.get("XDG_CONFIG_HOME", "")
    if not folder.startswith("/"):
        home = env.get("HOME", "")
        if not home.startswith("/"):
            raise SecretFileError(
                f"no directory for the secret {name!r}: HOME is {home!r}; set it to the home directory"
            )
        folder = f"{home}/.config"
    return Path(folder) / "csrun" / name


def read_secret(path: Path) -> str:
    """Return the secret in a file; if there is none, make one, in one of several processes that need it.

    Raises:
        SecretFileError: it cannot be read or written, others can read it, or its content is no secret.
    """
    try:
        found = _read(path)
        if found is None:
            path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            _write(path)
            found = _read(path)
    except OSError as error:
        raise SecretFileError(
            f"the secret in {path}: {error.strerror or error}; the file must be readable, or its directory "
            "writable, for its user"
        ) from None
    if found is None:
        raise SecretFileError(f"the secret in {path}: there is no such file")
    return found


def _read(path: Path) -> str | None:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except FileNotFoundError:
        return None
    with os.fdopen(descriptor, "rb") as file:
        status = os.fstat(descriptor)
        mode = stat.S_IMODE(status.st_mode)
        if not stat.S_ISREG(status.st_mode) or mode & 0o077 or status.st_uid != os.geteuid():
            raise SecretFileError(
                f"the secret in {path}: got mode {mode:04o} and owner {status.st_uid}, expected a file of "
                f"mode 0600 of user {os.geteuid()}: others may have read it; remove it, so that a new one is "
                "made"
            )
        text = file.read(200).decode("ascii", "replace").strip()
    if _SECRET.fullmatch(text) is None:
        raise SecretFileError(
            f"the secret in {path}: got another content than 64 hexadecimal digits; remove the file, so that "
            "a new one is made"
        )
    return text


def _write(path: Path) -> None:
    """Write a new secret, unless another process is faster."""
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with os.fdopen(descriptor, "w", encoding="ascii") as file:
            file.write(secrets.token_hex(32) + "\n")
            file.flush()
            os.fsync(descriptor)
        # Fails if the file exists, unlike a rename: a reader never sees two secrets.
        with contextlib.suppress(FileExistsError):
            os.link(temporary, path)
    finally:
        temporary.unlink()
