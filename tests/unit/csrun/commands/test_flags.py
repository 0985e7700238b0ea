"""Unexpected exceptions of the commands."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from csrun.commands.csrun import build_command
from csrun.commands.flags import run_main

CRASH = """
import sys, tempfile
tempfile.tempdir = sys.argv[1]
from csrun.commands.flags import run_main
def build():
    raise RuntimeError("a wrong turn")
run_main("csrun_wse", build, [])
"""


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["statsu"], "'statsu'; did you mean status? (all commands: csrun --help)"),
        (
            ["config", "chek"],
            "'chek'; did you mean check? (all commands: csrun config --help)",
        ),
        (["xyz"], "'xyz'; expected one of: cancel, completion, config, "),
    ],
)
def test_a_command_that_is_not_there_gets_a_suggestion(
    words: list[str], said: str, capfd: pytest.CaptureFixture[str]
) -> None:
    handler = signal.getsignal(signal.SIGINT)
    with pytest.raises(SystemExit, match="2"):
        run_main("csrun", build_command, words)
    signal.signal(signal.SIGINT, handler)
    assert capfd.readouterr().err.startswith(f"csrun: unknown command {said}")


ROOT = Path(__file__).resolve().parents[4]


def crash(folder: Path) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", CRASH, str(folder)]
    return subprocess.run(command, env=env, capture_output=True, text=True, timeout=60, check=False)


def test_a_bug_leaves_a_crash_file_and_exits_with_3(tmp_path: Path) -> None:
    result = crash(tmp_path)
    assert result.returncode == 3
    (report,) = tmp_path.iterdir()
    assert "RuntimeError: a wrong turn" in report.read_text()
    assert result.stderr.startswith("csrun_wse: bug in csrun_wse: RuntimeError('a wrong turn')")
    assert str(report) in result.stderr


def test_where_no_file_can_be_written_the_crash_is_shown(tmp_path: Path) -> None:
    result = crash(tmp_path / "missing")
    assert result.returncode == 3
    assert "Traceback" in result.stderr
    assert "RuntimeError: a wrong turn" in result.stderr
