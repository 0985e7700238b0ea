"""Processes that a CS system starts for itself, and that end when their standard input does."""

from __future__ import annotations

import contextlib
import subprocess

END_TIMEOUT_S = 5.0


def end_process(process: subprocess.Popen[bytes], timeout_s: float = END_TIMEOUT_S) -> None:
    """Closes the standard input of a process and waits for its end; kills it when that takes too long."""
    assert process.stdin is not None
    with contextlib.suppress(BrokenPipeError):
        process.stdin.close()
    try:
        process.wait(timeout_s)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
