"""Tasks in real containers on the nodes of a real cluster."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.containers.image import INSTALL, make_image

# Hides the runtime and the image from this machine; the nodes already have their own namespaces.
HIDE = 'mount --bind /dev/null "$1" && mount -t tmpfs none "$2" && shift 2 && exec "$@"'
SHOW = 'cat /etc/image-of-the-tests && echo "$SLURMD_NODENAME $CSRUN_ROLE $OF_THE_IMAGE in $PWD"'
ONE = ("--total-nodes=1", "--tasks-per-node=1")


@pytest.fixture(scope="module")
def image(slurm_programs: None, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An image for ch-run."""
    if shutil.which("ch-run") is None:
        if os.environ.get("CSRUN_REQUIRE_SLURM"):
            pytest.fail(INSTALL)
        pytest.skip(INSTALL)
    return make_image(tmp_path_factory.mktemp("image"))


@pytest.fixture
def site(image: Path) -> dict[str, str]:
    """Variables of a site with charliecloud."""
    return {"CSRUN_CONTAINER": "charliecloud", "SINGULARITY_IMAGE": str(image), "GRES_NODE": "cs-node1"}


@pytest.mark.parametrize("flags", [(), ("--use-sbatch",)])
def test_all_tasks_are_in_the_image(
    cluster: Any, run: Any, site: dict[str, str], tmp_path: Path, flags: tuple[str, ...]
) -> None:
    layout = ("--total-nodes=2", "--tasks-per-node=2", "--single-task-nodes=1")
    job = run(cluster, *flags, *layout, "sh", "-c", SHOW, env=site)
    assert job.process.returncode == 0, job.shown()
    assert f"chief | cs-node1 chief yes in {tmp_path}\n" in job.stdout
    assert job.stdout.count(f" worker yes in {tmp_path}\n") == 2


def test_a_command_that_the_image_lacks(cluster: Any, run: Any, site: dict[str, str]) -> None:
    job = run(cluster, *ONE, "no_such_command", env=site)
    assert job.process.returncode == 127, job.shown()
    assert "no_such_command: not found" in job.stderr


def test_a_runtime_that_the_nodes_lack(cluster: Any, run: Any, site: dict[str, str]) -> None:
    job = run(cluster, *ONE, "true", env={**site, "CSRUN_CONTAINER": "apptainer"})
    assert job.process.returncode == 127, job.shown()
    assert "apptainer is the site's container runtime" in job.stderr


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can hide the runtime from one machine")
def test_only_the_nodes_need_runtime_and_image(cluster: Any, run: Any, site: dict[str, str]) -> None:
    hidden = (str(shutil.which("ch-run")), site["SINGULARITY_IMAGE"])
    before = ("unshare", "--mount", "sh", "-c", HIDE, "sh", *hidden)
    site = {
        **site,
        "CSRUN_CONTAINER_OPTIONS": "--set-env",
    }  # nobody can see from here that the image wants it
    job = run(cluster, *ONE, "sh", "-c", SHOW, env=site, before=before)
    assert job.process.returncode == 0, job.shown()
    assert "chief yes in" in job.stdout
    job = run(cluster, "sh", "-c", SHOW, program="csrun_cpu", env=site, before=before)
    assert job.process.returncode == 0, job.shown()
    assert "yes in" in job.stdout
    doctor = run(cluster, "doctor", "--nodes=1", program="csrun", env=site, before=before)
    assert "ok    container        charliecloud, " in doctor.stdout, doctor.shown()
    here = run(cluster, "--launcher=local", *ONE, "true", env=site, before=before)
    assert here.process.returncode in (126, 127), here.shown()
