"""Programs of three releases of the original, run as they are."""

from __future__ import annotations

import runpy
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from cstorch.program import Program

Run = Callable[..., Any]
PROGRAMS = Path(__file__).parent / "programs"


@pytest.fixture
def run_program(monkeypatch: pytest.MonkeyPatch) -> Iterator[Run]:
    """Run a program as `__main__` with a command line; return its `result`."""

    def run(name: str, *flags: Any) -> Any:
        Program.reset()
        monkeypatch.setattr(sys, "argv", [f"{name}.py", *map(str, flags)])
        return runpy.run_path(str(PROGRAMS / f"{name}.py"), run_name="__main__")["result"]

    yield run
    Program.reset()
