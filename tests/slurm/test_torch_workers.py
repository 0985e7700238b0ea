"""Workers that a PyTorch program starts itself, on a node of the cluster."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from tests.systems import running_system

PROGRAM = Path(__file__).parents[1] / "clients" / "cstorch" / "programs" / "digits.py"


def test_a_program_without_a_launcher_has_its_workers_on_a_node(
    cluster: Any, run: Any, tmp_path: Path
) -> None:
    (tmp_path / "system").mkdir()
    with running_system(tmp_path / "system") as system:
        words = ["python", str(PROGRAM), "--steps=20", "--workers=2", f"--cs_ip={system.address}"]
        job = run(cluster, "--alloc-node=False", *words, program="csrun_cpu")
    assert job.process.returncode == 0, job.shown()
    assert "(1 chief, 2 workers; job slurm-" in job.stderr, job.shown()
    assert len(re.findall(r"^\| step \d+ loss", job.stdout, re.M)) == 20
