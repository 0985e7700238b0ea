"""The script of `make demo`."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPTS = Path(__file__).parents[2] / "scripts"
RUN = "import sys; sys.path.insert(0, sys.argv[1]); import demo; demo.run(*sys.argv[2:])"
STUBBORN = (
    "trap 'echo caught {0}; exit {1}' {0}; echo ready; "
    "n=0; while [ $((n += 1)) -lt 2000 ]; do sleep 0.01; done"
)


@pytest.mark.parametrize(
    ("signum", "name", "code", "expected"),
    [
        (signal.SIGINT, "INT", 130, 130),
        (signal.SIGTERM, "TERM", 143, 143),
        (signal.SIGINT, "INT", 0, 130),  # the command has just succeeded
    ],
)
def test_a_signal_only_to_the_demo_ends_its_command_first(
    signum: int, name: str, code: int, expected: int
) -> None:
    command = [sys.executable, "-c", RUN, str(SCRIPTS), "sh", "-c", STUBBORN.format(name, code)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as demo:
        assert demo.stdout is not None
        while demo.stdout.readline() != "ready\n":
            pass
        demo.send_signal(signum)
        output, errors = demo.communicate(timeout=20)
    assert output == f"caught {name}\n"
    assert (demo.returncode, errors.startswith(f"demo: exit code {expected} of: ")) == (expected, True)
