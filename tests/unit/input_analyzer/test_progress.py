"""The line of a running analysis."""

from __future__ import annotations

import os
import re

import pytest

from input_analyzer import commands


@pytest.mark.parametrize("width", [60, 80])
def test_a_narrow_terminal_shows_all_figures(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], width: int
) -> None:
    monkeypatch.setattr(os, "isatty", lambda descriptor: True)
    for name, value in {"TERM": "xterm", "COLUMNS": str(width)}.items():
        monkeypatch.setenv(name, value)
    with commands._progress() as tell:
        tell(f"measuring what loader-workers-many gives, round 2 of 8, after {'all ' * 20}", 0.35)
    drawn, cleared = re.split(r"\r\x1b\[K", capfd.readouterr().err)[1:]
    assert drawn.startswith(" 35 % measuring what loader-workers-many")
    assert len(drawn) == width - 1
    assert cleared == ""
