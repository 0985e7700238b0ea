"""Runs analyses by command, and finds processes that they leave."""

from __future__ import annotations

import subprocess
from contextlib import suppress
from pathlib import Path

from tests.processes import wait_until

ANALYZER = str(Path(__file__).parents[3] / "bin/cs_input_analyzer")


def analysis_of(folder: Path, *words: str) -> tuple[int, str]:
    """Exit code and stderr of an analysis in a folder that fails; no process may be left there."""
    command = [ANALYZER, *words]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=100, check=False)
    assert done.stdout == ""
    wait_until(lambda: not inside(folder))
    return done.returncode, done.stderr


def inside(folder: Path) -> list[str]:
    """Command lines of processes that work in a folder."""
    found = []
    for entry in Path("/proc").iterdir():
        with suppress(OSError):
            if entry.name.isdigit() and (entry / "cwd").readlink() == folder:
                found.append((entry / "cmdline").read_text())
    return found
