"""The user's command: which file it names, and why that cannot be run."""

from __future__ import annotations

import errno
import os

from csrun.errors import CommandNotExecutableError, CommandNotFoundError, StartError

_NO_ROOM = (errno.EAGAIN, errno.ENOMEM, errno.EMFILE, errno.ENFILE)
_HINTS = {
    errno.E2BIG: "expected fewer or shorter arguments and environment variables: pass long lists in a file",
    errno.ENOENT: "expected a script whose first line (#!) names an interpreter that exists",
    errno.ENOEXEC: "expected a program, or a script whose first line (#!) names its interpreter: for a "
    "Python file put 'python' in front of it",
}
_OF_THE_ORIGINAL = {
    "cerebras_install_check": "'csrun doctor' checks this machine",
    "csctl": "'csrun status' and 'csrun cancel' look after jobs here, 'cs_system status' after the CS system",
    **dict.fromkeys(("cslc", "cs_python"), "there is no language for kernels here, the compiler writes them"),
}
"""Commands that guides of sites name, and what serves instead."""


def find_command(command: str, path: str) -> str:
    """The file that `command` names, searched in the directories of `path` if it has no slash.

    Raises:
        CommandNotFoundError: there is no such file.
        CommandNotExecutableError: there is one, and it is no program.
    """
    candidates = [command] if "/" in command else [f"{folder or '.'}/{command}" for folder in path.split(":")]
    found = [file for file in candidates if command and exists(file)]
    files = [file for file in found if not is_directory(file)]
    for file in files:
        if os.access(file, os.X_OK):
            return file
    if not found or ("/" not in command and not files):
        if command and "/" not in command and exists(command) and not is_directory(command):
            raise CommandNotFoundError(
                f"command not found: {command!r}; a file of that name is here, and a program is searched in "
                f"PATH only: put 'python' in front of a Python file, './' in front of a program"
            )
        if command in _OF_THE_ORIGINAL:
            raise CommandNotFoundError(f"command not found: {command!r}; {_OF_THE_ORIGINAL[command]}")
        raise CommandNotFoundError(
            f"command not found: {command!r}; expected a program in PATH, or the path of one: "
            f"check the spelling"
        )
    kind = "is not executable" if files else "is a directory"
    raise CommandNotExecutableError(
        f"{(files or found)[0]!r} {kind}; expected a program: for a Python file put 'python' in front of it, "
        f"for a program of your own set its x bit (chmod +x)"
    )


def exists(path: str) -> bool:
    """Whether we can see something of this name; a name that is too long, or hidden from us, is none."""
    return os.access(path, os.F_OK)


def is_directory(path: str) -> bool:
    """Whether the name is that of a directory, in the same sense."""
    return exists(f"{path}/")


def start_refused(command: str, error: OSError) -> CommandNotExecutableError | StartError:
    """What to tell the user when the kernel does not start a command whose file exists."""
    if error.errno in _NO_ROOM:
        return StartError(
            f"cannot start {command!r}: {error.strerror}; expected room for one more process with its files: "
            f"start fewer tasks (--tasks-per-node), or raise the limits that 'ulimit -a' shows"
        )
    hint = _HINTS.get(error.errno or 0, "expected a program that this machine can execute: check the file")
    return CommandNotExecutableError(f"cannot execute {command!r}: {error.strerror}; {hint}")
