"""Programs of the session API: through the launchers, and in this process as the launchers would run them."""

from __future__ import annotations

import runpy
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from cs_compat import original_modules
from cstorch.program import Program

ROOT = Path(__file__).parents[3]
PROGRAMS = Path(__file__).parent / "programs"

Run = Callable[..., dict[str, Any]]


@pytest.fixture
def run_program(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Run]:
    """Runs a program as `python-pt` would, in a directory of its own; returns its variables."""
    modules = str(ROOT / "cs_compat" / "modules")
    monkeypatch.setattr(sys, "path_hooks", list(sys.path_hooks))
    monkeypatch.syspath_prepend(modules)
    original_modules.install(modules, pytorch=True)
    monkeypatch.chdir(tmp_path)

    def run(name: str, *flags: Any) -> dict[str, Any]:
        Program.reset()
        monkeypatch.setattr(sys, "argv", [f"{name}.py", *map(str, flags)])
        return runpy.run_path(str(PROGRAMS / f"{name}.py"), run_name="__main__")

    yield run
    Program.reset()
