"""The bar of a running analysis."""

from __future__ import annotations

import os
import re

import pytest

from input_analyzer import commands


@pytest.mark.parametrize("width", [60, 80])
def test_a_narrow_terminal_shows_all_figures(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], width: int
) -> None:
    monkeypatch.setattr(os, "isatty", lambda descriptor: True)
    for name, value in {"TERM": "xterm", "COLUMNS": str(width), "FORCE_COLOR": "1"}.items():
        monkeypatch.setenv(name, value)
    with commands._progress() as tell:
        tell("measuring what loader-workers-many gives, round 2 of 8, after all others", 0.35)
    lines = re.sub(r"\x1b\[[^a-zA-Z]*[a-zA-Z]", "", capsys.readouterr().err).splitlines()
    shown = next(line for line in lines if "measuring" in line)
    assert re.search(r" 35% 0:00:0\d measuring what .*…$", shown)
    assert len(shown.strip("\r")) <= width
