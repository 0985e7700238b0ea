"""Unexpected exceptions of the commands."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from cgc.tools.report import main as report_main
from cs_system.certificate_commands import certs
from cs_system.commands import main as cs_system_main
from csrun.commands.csrun import build_command
from csrun.commands.flags import run_main
from csrun.commands.wse import build_command as build_wse
from csrun.site import Site

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


def run_launcher(words: list[str]) -> int:
    handler = signal.getsignal(signal.SIGINT)
    try:
        run_main("csrun_wse", lambda: build_wse(Site()), words)
    except SystemExit as end:
        return int(str(end.code))
    finally:
        signal.signal(signal.SIGINT, handler)


@pytest.mark.parametrize(
    ("words", "shown"),
    [
        (["--mode=train", "python", "run.py"], "csrun_wse python run.py --mode=train"),
        (
            ["--total-nodes=2", "--cs_ip", "10.0.0.7", "/usr/bin/python3", "run.py", "-o", "a b"],
            "csrun_wse --total-nodes=2 /usr/bin/python3 run.py -o 'a b' --cs_ip 10.0.0.7",
        ),
        (["--params", "p.yaml", "--cyclic", "run.py"], "csrun_wse --cyclic run.py --params p.yaml"),
    ],
)
def test_a_flag_of_the_program_in_front_of_it_is_called_that(
    words: list[str], shown: str, capfd: pytest.CaptureFixture[str]
) -> None:
    assert run_launcher(words) == 2
    said = capfd.readouterr().err
    assert "it looks like a flag of the program" in said
    assert f": write {shown} (all flags" in said
    assert "did you mean" not in said


def test_a_typo_in_front_of_a_program_is_a_typo(capfd: pytest.CaptureFixture[str]) -> None:
    assert run_launcher(["--total_node=2", "python", "run.py"]) == 2
    assert "did you mean --total-nodes?" in capfd.readouterr().err


def test_csrun_alone_prints_its_help_with_whole_summaries(capfd: pytest.CaptureFixture[str]) -> None:
    handler = signal.getsignal(signal.SIGINT)
    with pytest.raises(SystemExit, match="2"):
        run_main("csrun", build_command, [])
    signal.signal(signal.SIGINT, handler)
    said = capfd.readouterr()
    text = said.out + said.err
    assert text.startswith("Usage: csrun")
    assert not re.search(r"[^]]\.\.\.$", text, re.MULTILINE)
    assert "kills them after their grace" in text


@pytest.mark.parametrize("group", [cs_system_main, certs, report_main], ids=["cs_system", "certs", "report"])
def test_summaries_of_commands_are_not_cut(group: click.Group) -> None:
    shown = CliRunner().invoke(group, ["--help"], terminal_width=60).output
    assert not re.search(r"[^]]\.\.\.$", shown, re.MULTILINE)
    assert len(shown.partition("Commands:")[2].split("\n")) > len(group.commands)


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
