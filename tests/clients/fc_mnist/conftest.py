from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
MODEL = ROOT / "models" / "fc_mnist" / "tf"

Command = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(scope="session")
def model_module() -> Iterator[object]:
    """The example's model.py, imported as its run.py imports it."""
    folders = [str(MODEL), str(ROOT)]
    sys.path[:0] = folders
    import model

    yield model
    for folder in folders:
        sys.path.remove(folder)


@pytest.fixture
def command(tmp_path: Path) -> Command:
    """Run a launcher of the checkout in a new directory."""

    def run(launcher: str, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [str(ROOT / "bin" / launcher), *arguments],
            cwd=tmp_path,
            env={**os.environ, **environment},
            capture_output=True,
            text=True,
            timeout=110,
            check=False,
        )

    return run
