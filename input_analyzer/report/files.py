"""Where --json and --html go: a file, whole or not at all; a pipe or device as it is; stdout for "-"."""

from __future__ import annotations

import os
import tempfile
from contextlib import suppress
from pathlib import Path

from cs_toolkit.errors import UsageError
from cs_toolkit.files import replace_file
from csrun.console import STDOUT
from csrun.errors import CsrunError

TO_STDOUT = Path("-")

_UNKNOWN = "backslashreplace"  # the user's words may hold bytes that are no text
_DESCRIPTORS = ("/dev/std", "/dev/fd/", "/proc/")
_ENDING = {"--json": ".json", "--html": ".html"}


def check_writable(flag: str, path: Path | None) -> None:
    """Whether a report can be written, before the time for it is spent.

    Raises:
        UsageError: its folder does not exist, or we may not write.
    """
    if path in (None, TO_STDOUT):
        return
    if not path.name:
        raise UsageError(
            f"{flag}: got no name of a file; expected one, for example {flag}=input{_ENDING[flag]}"
        )
    if path.is_dir():
        inside = path / f"input{_ENDING[flag]}"
        raise UsageError(f"{flag}: {str(path)!r} is a folder; expected a file: for example {flag}={inside}")
    try:
        if _is_stream(path):
            if not os.access(path, os.W_OK):
                raise PermissionError(0, "Permission denied")
            return
        folder = _place(path).parent
        if not folder.is_dir():
            raise UsageError(
                f"{flag}: there is no folder {str(folder)!r}; expected one that exists: create it"
            )
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise UsageError(
            f"{flag}: {str(path)!r} cannot be written: {error.strerror}; expected a folder that we may write"
        ) from error


def check_different(json_file: Path | None, html_file: Path | None) -> None:
    """Whether the two reports have places of their own; /dev/null takes both.

    Raises:
        UsageError: they have not: one would take the place of the other, or mix with it.
    """
    if json_file is None or html_file is None:
        return
    if json_file == html_file == TO_STDOUT:
        raise UsageError("--json=- with --html=-: expected one of them on stdout, and a file for the other")
    places = [Path("/dev/stdout") if path == TO_STDOUT else path for path in (json_file, html_file)]
    linked = all(path.exists() for path in places) and places[0].samefile(places[1])
    same = linked or _place(places[0]) == _place(places[1])
    if same and str(_place(places[0])) != os.devnull:
        raise UsageError(
            f"--json={json_file} with --html={html_file}: both are the same file; expected one for each, for "
            "example --json=input.json --html=input.html"
        )


def write(path: Path, text: str) -> None:
    """Writes a report; a file in one step, so that a reader never sees half of it.

    Raises:
        CsrunError: there is no room, or no permission any more.
    """
    try:
        if path == TO_STDOUT or _is_stream(path):
            _append(STDOUT if path == TO_STDOUT else path, text)
        else:
            replace_file(_place(path), text.encode(errors=_UNKNOWN))
    except OSError as error:
        raise CsrunError(
            f"{path} cannot be written: {error.strerror}; expected room and permission"
        ) from error


def _append(stream: int | Path, text: str) -> None:
    with (
        suppress(BrokenPipeError),  # its reader has what it wanted
        open(stream, "a", encoding="utf-8", errors=_UNKNOWN, closefd=stream != STDOUT) as sink,
    ):
        sink.write(text)


def _is_stream(path: Path) -> bool:
    """A pipe, a device, or an open descriptor such as /dev/stdout: a file in its place would break it."""
    descriptor = str(path.absolute()).startswith(_DESCRIPTORS)
    return path.exists() and (descriptor or not path.is_file())


def _place(path: Path) -> Path:
    """The file itself where the path is a link to it, which stays a link."""
    return Path(os.path.realpath(path))
