"""The simulated system of a program's own ends with the program, however that ends."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from cs_runtime import embedded_system
from cs_runtime.errors import EmbeddedSystemError
from cs_system.address import SystemAddress
from cs_system.client import SystemClient, parse_address
from tests.processes import wait_until

PROGRAM = """
import time
from pathlib import Path
from cs_runtime.embedded_system import EmbeddedSystem
print(EmbeddedSystem(Path("system.log")).address, flush=True)
time.sleep(600)
"""


def test_a_program_that_is_killed_leaves_no_system(tmp_path: Path) -> None:
    root = Path(embedded_system.__file__).parents[1]
    environment = {"PYTHONPATH": str(root), "TMPDIR": str(tmp_path)}
    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM], cwd=tmp_path, env=environment, stdout=subprocess.PIPE
    )
    assert process.stdout is not None
    address = parse_address(process.stdout.readline().decode().strip())
    with SystemClient(address) as client:
        assert client.info().state == "IDLE"
    process.send_signal(signal.SIGKILL)
    process.wait()
    # By socket: while it ends, it may accept a connection and say nothing.
    wait_until(lambda: not is_listened_on(address))


def is_listened_on(address: SystemAddress) -> bool:
    try:
        socket.create_connection((address.host, address.port), timeout=1.0).close()
    except ConnectionRefusedError:
        return False
    except OSError:
        pass  # while its last connections are torn down
    return True


def test_a_system_that_does_not_start_gives_the_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(sys, "executable", "/bin/false")
    system = embedded_system.EmbeddedSystem(tmp_path / "logs" / "system.log")
    with pytest.raises(EmbeddedSystemError, match=r"(?s)exit code 1 before it was ready.*system\.log"):
        _ = system.address
