"""The distribution of tests to the workers of pytest-xdist in `make test`."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

TESTS = Path(__file__).parents[1]
SETTINGS = ("conftest.py", "systems.py")

FILES = ("unit/test_one.py", "browser/test_two.py", "faults/room/test_three.py", "slurm/test_four.py")
CONTENT = """
import os
import pytest

@pytest.mark.parametrize("number", range(6))
def test(number):
    with open(os.environ["WORKERS"], "a") as file:
        print(__file__, os.environ["PYTEST_XDIST_WORKER"], file=file)
"""


def test_a_file_and_what_runs_in_turn_have_one_worker_each(tmp_path: Path) -> None:
    for name in FILES:
        path = tmp_path / "tests" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(CONTENT)
    for name in SETTINGS:
        shutil.copy(TESTS / name, tmp_path / "tests")
    (tmp_path / "pytest.ini").write_text("[pytest]\naddopts = --import-mode=importlib\n")
    clean = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    clean["WORKERS"] = str(tmp_path / "workers")
    words = ("-q", "-p", "no:cacheprovider", "--numprocesses=3", "--no-loadscope-reorder")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *words, "tests"],
        cwd=tmp_path,
        env=clean,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    found = defaultdict(list)
    for line in (tmp_path / "workers").read_text().splitlines():
        file, worker = line.split()
        found[str(Path(file).relative_to(tmp_path / "tests"))].append(worker)
    assert {file: (len(workers), len(set(workers))) for file, workers in found.items()} == dict.fromkeys(
        FILES, (6, 1)
    )
    assert found["browser/test_two.py"] == found["faults/room/test_three.py"]
