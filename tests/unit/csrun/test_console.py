"""Signs of life: a command that takes a while says what it does."""

from __future__ import annotations

import socket
import subprocess
import threading
from pathlib import Path

import pytest

from csrun import console
from csrun.console import SignOfLife
from tests.processes import clean_environment

BIN = Path(__file__).resolve().parents[3] / "bin"


@pytest.fixture
def said(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    lines: list[str] = []
    monkeypatch.setattr(console, "say", lambda program, text: lines.append(f"{program}: {text}"))
    return lines


def test_a_quick_command_says_nothing(said: list[str]) -> None:
    before = threading.active_count()
    with SignOfLife("csrun_wse", after_s=3600) as sign:
        sign.doing("asking Slurm")
    assert said == []
    assert threading.active_count() == before


def test_a_slow_command_says_its_activity_and_each_further_one(
    said: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    is_said = threading.Event()
    monkeypatch.setattr(console, "say", lambda program, text: (said.append(text), is_said.set()))
    with SignOfLife("csrun_wse", after_s=0.01) as sign:
        sign.doing("asking Slurm")
        assert is_said.wait(60)
        sign.doing("asking the CS system")
    assert said == ["asking Slurm", "asking the CS system"]


@pytest.mark.parametrize("program", ["csrun_wse", "csrun_cpu"])
def test_a_launcher_says_that_it_asks_a_system_which_does_not_answer(tmp_path: Path, program: str) -> None:
    """A port that accepts connections and never answers holds the launcher up until the test has its line."""
    with socket.create_server(("127.0.0.1", 0)) as system:
        address = f"127.0.0.1:{system.getsockname()[1]}"
        with subprocess.Popen(
            [BIN / program, "true", f"--cs_ip={address}"],
            cwd=tmp_path,
            env={**clean_environment("XDG_CONFIG"), "XDG_CONFIG_HOME": str(tmp_path)},
            stderr=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            text=True,
        ) as launcher:
            try:
                assert launcher.stderr is not None
                line = launcher.stderr.readline()
            finally:
                launcher.kill()
    assert line == f"{program}: asking the CS system at {address} whether it is free\n"
