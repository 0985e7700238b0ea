"""Errors that no code has expected."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest

from cs_system.errors import ResourceLimitError, SystemBugError, from_wire, unexpected_error


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (
            OSError(errno.EMFILE, os.strerror(errno.EMFILE)),
            r"has reached the limit of \d+ for open",
        ),
        (OSError(errno.ENFILE, os.strerror(errno.ENFILE)), "an engine has reached the limit for open files"),
        (OSError(errno.ENOMEM, os.strerror(errno.ENOMEM)), "an engine gets no more memory"),
        (MemoryError(), "an engine gets no more memory"),
    ],
)
def test_a_missing_resource_is_no_bug(error: Exception, text: str) -> None:
    found = unexpected_error("an engine", error)
    assert found.exit_code == 1
    received = from_wire(found.code, str(found), found.fields)
    with pytest.raises(ResourceLimitError, match=text):
        raise received


def test_any_other_exception_is_a_bug() -> None:
    for error in (KeyError("x"), OSError(errno.ENOENT, "No such file")):
        found = unexpected_error("an engine", error)
        assert isinstance(found, SystemBugError)
        assert str(found).startswith(f"internal error of an engine: {type(error).__name__}")


def test_a_system_with_too_few_files_states_the_limit(tmp_path: Path) -> None:
    script = 'ulimit -n 32; exec "$0" -m cs_system serve --port=0'
    done = subprocess.run(
        ["sh", "-c", script, sys.executable], capture_output=True, text=True, timeout=60, cwd=tmp_path
    )
    assert done.returncode == 2
    assert "may open 32 files (`ulimit -n`), expected 64 and some for each worker" in done.stderr
