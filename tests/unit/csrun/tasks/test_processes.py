"""Which processes a signal for checkpoints goes to."""

from __future__ import annotations

import signal
import subprocess
import sys

from csrun.tasks.processes import find_signal_handlers

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
        assert find_signal_handlers(signal.SIGUSR1, [shell.pid]) == {shell.pid: [program]}
        assert find_signal_handlers(signal.SIGUSR1, [program]) == {program: [program]}
        assert find_signal_handlers(signal.SIGUSR2, [shell.pid]) == {shell.pid: []}
    assert find_signal_handlers(signal.SIGUSR1, [shell.pid]) == {}


def test_a_script_that_tidies_up_at_its_end_is_no_handler() -> None:
    """Bash catches every signal for a trap on EXIT, and ends by it; the program below has to get it."""
    script = 'trap "echo tidied" EXIT; "$@"; true'
    with subprocess.Popen(
        ["bash", "-c", script, "bash", sys.executable, "-c", PROGRAM],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as shell:
        assert shell.stdout is not None
        program = int(shell.stdout.readline())
        assert find_signal_handlers(signal.SIGUSR1, [shell.pid]) == {shell.pid: [program]}
