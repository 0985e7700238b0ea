"""Write --json and --html: files atomically, pipes and devices directly, "-" to stdout."""

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

_ERRORS = "backslashreplace"  # the user's arguments may contain undecodable bytes
_DESCRIPTORS = ("/dev/std", "/dev/fd/", "/proc/")
_ENDING = {"--json": ".json", "--html": ".html"}


def check_writable(flag: str, path: Path | None) -> None:
    """Check that a report can be written, before time is spent on it.

    Raises:
        UsageError: its folder does not exist, or is not writable.
    """
    if path in (None, TO_STDOUT):
        return
    if not path.name:
        raise UsageError(f"{flag}: got no file name; expected one, for example {flag}=input{_ENDING[flag]}")
    if path.is_dir():
        inside = path / f"input{_ENDING[flag]}"
        raise UsageError(f"{flag}: {str(path)!r} is a folder; expected a file: for example {flag}={inside}")
    try:
        if _is_stream(path):
            if not os.access(path, os.W_OK):
                raise PermissionError(0, "Permission denied")
            return
        folder = _target_file(path).parent
        if not folder.is_dir():
            raise UsageError(
                f"{flag}: folder {str(folder)!r} does not exist; expected an existing one: create it"
            )
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise UsageError(
            f"{flag}: {str(path)!r} cannot be written: {error.strerror}; expected a writable folder"
        ) from error


def check_different(json_file: Path | None, html_file: Path | None) -> None:
    """Check that the two reports are written to different files; both may be /dev/null.

    Raises:
        UsageError: one of them would replace the other, or mix with it.
    """
    if json_file is None or html_file is None:
        return
    if json_file == html_file == TO_STDOUT:
        raise UsageError("--json=- with --html=-: expected one of them on stdout, and a file for the other")
    places = [Path("/dev/stdout") if path == TO_STDOUT else path for path in (json_file, html_file)]
    linked = all(path.exists() for path in places) and places[0].samefile(places[1])
    same = linked or _target_file(places[0]) == _target_file(places[1])
    if same and str(_target_file(places[0])) != os.devnull:
        raise UsageError(
            f"--json={json_file} with --html={html_file}: both are the same file; expected one for each, for "
            "example --json=input.json --html=input.html"
        )


def write(path: Path, text: str) -> None:
    """Write a report; a file is replaced atomically, so that no reader sees half of it.

    Raises:
        CsrunError: the disk is full, or the permissions have changed.
    """
    try:
        if path == TO_STDOUT or _is_stream(path):
            stream = STDOUT if path == TO_STDOUT else path
            with (
                suppress(BrokenPipeError),  # the reader has closed the pipe
                open(stream, "a", encoding="utf-8", errors=_ERRORS, closefd=stream != STDOUT) as sink,
            ):
                sink.write(text)
        else:
            replace_file(_target_file(path), text.encode(errors=_ERRORS))
    except OSError as error:
        raise CsrunError(
            f"{path} cannot be written: {error.strerror}; expected space on the disk and write permission"
        ) from error


def _is_stream(path: Path) -> bool:
    """Return True for pipes, devices and open descriptors such as /dev/stdout: never replace these."""
    descriptor = str(path.absolute()).startswith(_DESCRIPTORS)
    return path.exists() and (descriptor or not path.is_file())


def _target_file(path: Path) -> Path:
    """Resolve links, so that a link to the file stays a link."""
    return Path(os.path.realpath(path))
