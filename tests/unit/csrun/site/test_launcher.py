"""Which launcher runs a job that does not say."""

from __future__ import annotations

from pathlib import Path

import pytest

from csrun.schedulers.registry import choose
from csrun.site import Site


@pytest.mark.parametrize(
    ("flag", "site", "expected"),
    [
        (None, Site(), "local"),
        (None, Site(launcher="slurm"), "slurm"),
        (None, Site(sections={"slurm": {"gres_resource": "cs:1"}}), "slurm"),
        (None, Site(sections={"slurm": {"gres_node": "cs-host"}}), "slurm"),
        (None, Site(sections={"slurm": {"licence": "cs:1"}}), "slurm"),
        (None, Site(launcher="local", sections={"slurm": {"gres_resource": "cs:1"}}), "local"),
        ("local", Site(launcher="slurm"), "local"),
        ("slurm", Site(launcher="local"), "slurm"),
        (None, Site(sections={"slurm": {"partition": "wafer"}}), "local"),
    ],
)
def test_flag_setting_and_environment_choose_the_launcher_in_this_order(
    flag: str | None, site: Site, expected: str
) -> None:
    assert choose(flag, site, {}).name == expected


def test_an_allocation_speaks_for_slurm_where_srun_can_be_found(tmp_path: Path) -> None:
    (tmp_path / "srun").write_text("#!/bin/sh\n")
    inside = {"SLURM_JOB_ID": "17", "PATH": str(tmp_path)}
    assert choose(None, Site(), inside).name == "local"
    (tmp_path / "srun").chmod(0o755)
    assert choose(None, Site(), inside).name == "slurm"
    assert choose(None, Site(), {"PATH": str(tmp_path)}).name == "local"
    assert choose("local", Site(), inside).name == "local"
