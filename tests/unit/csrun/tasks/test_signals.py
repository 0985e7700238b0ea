"""Signals for checkpoints reach programs that have no handler yet when they come."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from csrun.tasks.processes import children_of
from csrun.tasks.signals import LOOK_INTERVAL_S, SignalRelay

PROGRAM = """
import signal, sys
sys.stdin.readline()
signal.signal(signal.SIGUSR1, lambda *_: print("checkpoint", flush=True))
print("ready", flush=True)
while sys.stdin.readline():
    print("on", flush=True)
"""


@pytest.fixture(autouse=True)
def only_new_children(monkeypatch: pytest.MonkeyPatch) -> None:
    """The process of the tests may have other children by now, which are none of a test's programs."""
    before = set(children_of(os.getpid()))
    monkeypatch.setattr(
        "csrun.tasks.signals.children_of",
        lambda pid: [child for child in children_of(pid) if child not in before],
    )


@pytest.fixture
def program(only_new_children: None) -> Iterator[Any]:
    with subprocess.Popen(
        [sys.executable, "-c", PROGRAM], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as started:
        yield started


def say(program: Any) -> str:
    """Let the program continue, and return its next line."""
    program.stdin.write("\n")
    program.stdin.flush()
    return str(program.stdout.readline())


def test_a_program_gets_the_signal_when_it_has_a_handler(program: Any) -> None:
    relay = SignalRelay(guard_pid=0)
    relay.send(signal.SIGUSR1, 0.0)
    assert relay.waiting
    assert say(program) == "ready\n"  # the signal has not ended it
    relay.tick(LOOK_INTERVAL_S / 2)
    assert say(program) == "on\n"
    relay.tick(LOOK_INTERVAL_S)
    assert not relay.waiting
    assert program.stdout.readline() == "checkpoint\n"
    relay.tick(2 * LOOK_INTERVAL_S)
    assert say(program) == "on\n"  # once, not at every look


def test_a_signal_does_not_wait_for_ended_or_foreign_processes(program: Any) -> None:
    relay = SignalRelay(guard_pid=0)
    relay.send(signal.SIGUSR1, 0.0)
    program.kill()
    program.wait()
    relay.tick(LOOK_INTERVAL_S)
    assert not relay.waiting
    with subprocess.Popen(["sleep", "60"]) as guard:
        relay = SignalRelay(guard_pid=guard.pid)
        relay.send(signal.SIGUSR1, 0.0)
        assert not relay.waiting
        guard.kill()
