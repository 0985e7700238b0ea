"""Runs the launchers as a user does: the wrappers of bin/, real processes, an environment that we know."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.processes import clean_environment

BIN = Path(__file__).resolve().parents[3] / "bin"

Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """Runs a program of bin/ with the given words in an empty directory, to its end."""
    clean = clean_environment("LD_", "XDG_CONFIG")

    def call(
        program: str, *arguments: str, env: dict[str, str] | None = None
    ) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [BIN / program, *arguments],
            cwd=tmp_path,
            env={**clean, "XDG_CONFIG_HOME": str(tmp_path / "no-config"), **(env or {})},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )

    return call
