"""Runs the launchers with a real container runtime and a real image."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.processes import clean_environment

from .image import INSTALL, make_frame, make_image

ROOT = Path(__file__).resolve().parents[2]
BIN = ROOT / "bin"

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
    clean = clean_environment("LD_")
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


@pytest.fixture
def outside_tmp() -> Iterator[Path]:
    """A folder that is not below /tmp, which ch-run shares anyway; below a directory that the image has."""
    folder = Path("/home") / f"csrun test {os.getpid()}"
    try:
        folder.mkdir()
    except PermissionError:
        pytest.skip("needs a user who may write to /home, as root may")
    yield folder
    shutil.rmtree(folder)


@pytest.fixture
def frame(tmp_path: Path, image: Path) -> tuple[Path, str]:
    """An image without any files, and the directories that make the toolkit's environment of it."""
    directories = sorted({"/usr", str(ROOT), sys.prefix, sys.base_prefix})
    return make_frame(tmp_path / "frame", directories), ",".join(directories)


@pytest.fixture
def python() -> str:
    """The Python of the toolkit's environment, in such an image too."""
    return str(Path(sys.prefix) / "bin" / "python")
