"""The entry point of the wrappers in bin/."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[3]
RUN = "import sys; sys.path.insert(0, sys.argv.pop(1)); from csrun.bootstrap import run; run('a', 'command')"
SENT = "import os, signal\nos.kill(os.getpid(), signal.SIGINT)\n"
MAIN = """
def main():
    try:
        os.kill(os.getpid(), signal.SIGINT)
    except KeyboardInterrupt:
        raise SystemExit(7)
"""


def run(folder: Path, source: str) -> tuple[int, str]:
    (folder / "command.py").write_text(source)
    command = [sys.executable, "-c", RUN, str(ROOT)]
    done = subprocess.run(command, cwd=folder, stderr=subprocess.PIPE, text=True, timeout=20, check=False)
    return done.returncode, done.stderr


def test_ctrl_c_while_a_command_is_imported_ends_it_without_a_traceback(tmp_path: Path) -> None:
    assert run(tmp_path, SENT) == (130, "")


def test_a_command_handles_ctrl_c_itself(tmp_path: Path) -> None:
    assert run(tmp_path, f"import os, signal\n{MAIN}") == (7, "")
