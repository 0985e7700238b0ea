"""The process in whose forks tests run programs."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

from tests.processes import wait_until
from tests.programs.fork_server import CLIENT, FAILED_START, ROOT

SERVE = "import sys; from tests.programs.fork_server import serve; serve(sys.argv[1])"


@pytest.fixture
def server() -> Iterator[tuple[subprocess.Popen[str], str]]:
    """Yield a server without a framework, and the path of its socket."""
    with TemporaryDirectory(prefix="fork-") as folder:
        path = f"{folder}/socket"
        command = [sys.executable, "-c", SERVE, path]
        with subprocess.Popen(
            command, cwd=ROOT, stdin=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        ) as process:
            wait_until(lambda: Path(path).exists() or process.poll() is not None)
            yield process, path
            process.kill()


def ask(path: str, **changes: Any) -> str:
    """Send a request as a client, and return the answer."""
    request = {"words": ["none"], "environment": {}, "directory": "/", "cpus": [0], **changes}
    with socket.socket(socket.AF_UNIX) as connection, Path(os.devnull).open("w") as null:
        connection.settimeout(20)
        connection.connect(path)
        socket.send_fds(connection, [b"x"], [null.fileno()] * 3)
        connection.sendall(json.dumps(request).encode() + b"\n")
        return connection.makefile().readline()


def test_a_task_that_cannot_start_fails_and_others_start(
    server: tuple[subprocess.Popen[str], str], tmp_path: Path
) -> None:
    process, path = server
    assert ask(path, directory="/no/such/place") == f"{FAILED_START}\n"
    assert ask(path, cpus=[9999]) == f"{FAILED_START}\n"
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(path)  # and ends
    program = tmp_path / "program.py"
    program.write_text("import sys; print(sys.argv[1]); sys.exit(7)")
    client = [sys.executable, "-I", "-S", str(CLIENT), path, "python", str(program), "given"]
    done = subprocess.run(client, capture_output=True, text=True, timeout=20, check=False)
    assert (done.returncode, done.stdout) == (7, "given\n")
    assert process.poll() is None


def test_the_server_ends_with_its_owner(server: tuple[subprocess.Popen[str], str]) -> None:
    process, _ = server
    assert process.stdin is not None
    process.stdin.close()
    assert process.wait(20) == 0
