"""Runs the launchers with a real container runtime and a real image."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
from image import INSTALL, make_image

BIN = Path(__file__).resolve().parents[2] / "bin"
FOREIGN = (
    "CSRUN_",
    "TF_CONFIG",
    "SLURM_",
    "DEF_",
    "PYTHON",
    "MOUNT_DIRS",
    "SINGULARITY_",
    "GRES_",
    "LD_",
    "CS_",
)

Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(scope="session")
def image(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An image for ch-run."""
    if shutil.which("ch-run") is None:
        if os.environ.get("CSRUN_REQUIRE_SLURM"):
            pytest.fail(INSTALL)
        pytest.skip(INSTALL)
    return make_image(tmp_path_factory.mktemp("image"))


@pytest.fixture
def run(image: Path, tmp_path: Path) -> Run:
    """Runs a launcher of a site with charliecloud, in a directory that the image does not have."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith(FOREIGN)}
    site = {"CSRUN_CONTAINER": "charliecloud", "SINGULARITY_IMAGE": str(image)}

    def call(
        program: str, *arguments: str, cwd: Path = tmp_path, **environment: str
    ) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [BIN / program, *arguments],
            cwd=cwd,
            env={**clean, "XDG_CONFIG_HOME": str(tmp_path), **site, **environment},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=110,
            check=False,
        )

    return call
