from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.processes import clean_environment

ROOT = Path(__file__).parents[3]

Command = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(scope="session")
def run_in() -> Callable[[Path], Command]:
    """Runs launchers of the checkout in a directory."""
    clean = clean_environment("TF_USE_LEGACY")

    def in_directory(directory: Path) -> Command:
        def run(launcher: str, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
            return subprocess.run(
                [str(ROOT / "bin" / launcher), *arguments],
                cwd=directory,
                env={**clean, "XDG_CONFIG_HOME": str(directory), **environment},
                capture_output=True,
                text=True,
                timeout=500,
                check=False,
            )

        return run

    return in_directory


@pytest.fixture
def command(run_in: Callable[[Path], Command], tmp_path: Path) -> Command:
    """Run a launcher of the checkout in a new directory."""
    return run_in(tmp_path)
