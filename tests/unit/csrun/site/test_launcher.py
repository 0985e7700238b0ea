"""Which launcher runs a job that does not say."""

from __future__ import annotations

from pathlib import Path

import pytest

from csrun.site.model import Launcher, Site, choose_launcher


@pytest.mark.parametrize(
    ("flag", "site", "expected"),
    [
        (None, Site(), "local"),
        (None, Site(launcher="slurm"), "slurm"),
        (None, Site(gres_resource="cs:1"), "slurm"),
        (None, Site(gres_node="cs-host"), "slurm"),
        (None, Site(licence="cs:1"), "slurm"),
        (None, Site(launcher="local", gres_resource="cs:1"), "local"),
        ("local", Site(launcher="slurm"), "local"),
        ("slurm", Site(launcher="local"), "slurm"),
        (None, Site(partition="wafer", container="singularity", container_image="/i"), "local"),
    ],
)
def test_the_flag_then_the_setting_then_what_speaks_for_slurm(
    flag: Launcher | None, site: Site, expected: Launcher
) -> None:
    assert choose_launcher(flag, site, {}) == expected


def test_an_allocation_speaks_for_slurm_where_srun_can_be_found(tmp_path: Path) -> None:
    (tmp_path / "srun").write_text("#!/bin/sh\n")
    inside = {"SLURM_JOB_ID": "17", "PATH": str(tmp_path)}
    assert choose_launcher(None, Site(), inside) == "local"
    (tmp_path / "srun").chmod(0o755)
    assert choose_launcher(None, Site(), inside) == "slurm"
    assert choose_launcher(None, Site(), {"PATH": str(tmp_path)}) == "local"
    assert choose_launcher("local", Site(), inside) == "local"
