"""The simulated system of a program's own ends with the program, however that ends."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from cs_runtime import embedded_system
from cs_runtime.errors import EmbeddedSystemError
from cs_system.client import SystemClient, parse_address
from cs_system.errors import NotACsSystemError, SystemUnreachableError

PROGRAM = """
import time
from pathlib import Path
from cs_runtime.embedded_system import EmbeddedSystem
print(EmbeddedSystem(Path("system.log")).address, flush=True)
time.sleep(600)
"""


def test_a_program_that_is_killed_leaves_no_system_behind(tmp_path: Path) -> None:
    root = Path(embedded_system.__file__).parents[1]
    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM], cwd=tmp_path, env={"PYTHONPATH": str(root)}, stdout=subprocess.PIPE
    )
    assert process.stdout is not None
    address = parse_address(process.stdout.readline().decode().strip())
    with SystemClient(address) as client:
        assert client.info().state == "IDLE"
    process.send_signal(signal.SIGKILL)
    process.wait()
    deadline = time.monotonic() + 20.0
    while time.monotonic() < deadline:
        try:
            SystemClient(address, timeout_s=1.0).close()
        except SystemUnreachableError:
            return
        except NotACsSystemError as ending:  # reset while its last connections are torn down
            if "broke the connection" not in str(ending):
                raise
        time.sleep(0.1)
    raise AssertionError("the system is still there")


def test_a_system_that_does_not_start_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(sys, "executable", "/bin/false")
    system = embedded_system.EmbeddedSystem(tmp_path / "logs" / "system.log")
    with pytest.raises(EmbeddedSystemError, match=r"(?s)exit code 1 before it was ready.*system\.log"):
        _ = system.address
