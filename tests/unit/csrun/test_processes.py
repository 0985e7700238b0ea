"""Which processes a signal for checkpoints goes to."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

from csrun.processes import catching

PROGRAM = """
import os, signal, sys
signal.signal(signal.SIGUSR1, lambda *_: None)
if os.fork() == 0:  # it inherits the handler
    sys.stdin.read()
    os._exit(0)
print(os.getpid(), flush=True)
sys.stdin.read()
"""


def test_the_uppermost_process_with_a_handler_gets_it() -> None:
    with subprocess.Popen(
        ["sh", "-c", '"$@"; true', "sh", sys.executable, "-c", PROGRAM],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as shell:
        assert shell.stdout is not None
        program = int(shell.stdout.readline())
        assert program != shell.pid
        assert catching(signal.SIGUSR1, shell.pid) == [program]
        assert program in catching(signal.SIGUSR1, os.getpid())
        assert catching(signal.SIGUSR2, shell.pid) == []
