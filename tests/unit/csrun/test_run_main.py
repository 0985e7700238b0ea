"""What becomes of an exception that nobody expected."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

CRASH = """
import sys, tempfile
tempfile.tempdir = sys.argv[1]
from csrun.commands.flags import run_main
def build():
    raise RuntimeError("a wrong turn")
run_main("csrun_wse", build, [])
"""
ROOT = Path(__file__).resolve().parents[3]


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
