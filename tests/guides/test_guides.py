"""The commands of all documents end as their page says."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
from cluster import missing_programs
from run_guide import ROOT, apart
from surroundings import GUIDES, Guide

LIMIT_S = 600


@pytest.mark.guides
@pytest.mark.timeout(LIMIT_S + 30)
@pytest.mark.parametrize("guide", GUIDES, ids=str)
def test_the_commands_of_a_guide(guide: Guide) -> None:
    missing = missing_programs() if guide.nodes else []
    missing += ["charliecloud"] if guide.image and shutil.which("ch-run") is None else []
    if missing and not os.environ.get("CSRUN_REQUIRE_SLURM"):
        pytest.skip(f"not installed: {', '.join(missing)}")
    done = subprocess.run(
        apart(guide), cwd=ROOT, capture_output=True, text=True, timeout=LIMIT_S, check=False
    )
    print(done.stdout)
    assert done.returncode == 0, done.stdout + done.stderr
