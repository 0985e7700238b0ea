from __future__ import annotations

import logging
import runpy
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from cstorch.program import Program


@pytest.fixture
def run_torch_program(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> Iterator[Callable[..., str]]:
    """Run PyTorch programs in this process, as if each had its own; return their output and log."""
    monkeypatch.setattr(sys, "path", [*sys.path])
    caplog.set_level(logging.INFO)

    def run(program: Path, *arguments: str) -> str:
        Program.reset()
        caplog.clear()
        monkeypatch.setattr(sys, "argv", [str(program), *arguments])
        runpy.run_path(str(program), run_name="__main__")
        shown = capsys.readouterr()
        return shown.out + shown.err + caplog.text

    yield run
    Program.reset()
