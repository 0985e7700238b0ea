"""The live line below the output of a terminal."""

from __future__ import annotations

import os

import pytest

from cs_toolkit import live_line
from cs_toolkit.live_line import LiveLine, has_live_line
from tests.screens import screen


def test_output_appears_above_the_line() -> None:
    line, shown = LiveLine(), ""
    line.text = "step 1"
    shown += line.draw(80)
    shown += line.erase() + "a log line\n"
    line.output("a log line\n")
    line.text = "step 2"
    shown += line.draw(80)
    assert screen(shown) == ["a log line", "step 2"]
    line.text = ""
    assert screen(shown + line.draw(80)) == ["a log line"]


def test_the_line_waits_for_the_end_of_an_unfinished_one() -> None:
    line = LiveLine()
    line.text = "step 1"
    line.output("epoch 1: ")
    assert line.draw(80) == ""
    line.output("done\n")
    assert screen(line.draw(80)) == ["step 1"]


@pytest.mark.parametrize("columns", [40, 80])
def test_the_line_never_wraps(columns: int) -> None:
    line = LiveLine()
    line.text = "x" * 200
    assert screen(line.draw(columns) + line.erase(), columns) == []


def test_the_line_cannot_control_the_terminal() -> None:
    line = LiveLine()
    line.text = "no step since: \x1b[2J\n"
    assert screen(line.draw(80)) == [r"no step since: \x1b[2J\x0a"]


@pytest.mark.parametrize(
    ("environment", "terminals", "shown"),
    [
        ({"TERM": "xterm"}, {1, 2}, True),
        ({"TERM": "xterm"}, {2}, False),  # stdout is a pipe
        ({"TERM": "xterm"}, {1}, False),
        ({"TERM": "dumb"}, {1, 2}, False),
        ({}, {1, 2}, False),
        ({"TERM": "xterm", "CS_PROGRESS": "log"}, {1, 2}, False),
        ({"TERM": "xterm", "CS_PROGRESS": "live"}, {1, 2}, True),
        ({"TERM": "xterm", "CS_LOG_FORMAT": "json"}, {1, 2}, False),
    ],
)
def test_where_a_line_is_shown(
    environment: dict[str, str], terminals: set[int], shown: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("TERM", "CS_PROGRESS", "CS_LOG_FORMAT"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(live_line.os, "isatty", lambda descriptor: descriptor in terminals)
    assert has_live_line() is shown


def test_the_width_is_that_of_the_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live_line.os, "get_terminal_size", lambda _: os.terminal_size((40, 24)))
    assert live_line.terminal_columns() == 40
