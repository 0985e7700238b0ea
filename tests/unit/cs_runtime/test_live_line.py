"""The live line of a program that writes to a terminal itself."""

from __future__ import annotations

import io
import logging
import sys
from pathlib import Path

import pytest

import cs_runtime.progress
from cs_runtime import live_line
from cs_runtime.live_line import TerminalLine, open_terminal_line
from cs_runtime.progress import HostProgress, end_training, log_how_to_resume
from tests.screens import screen


class Terminal(io.StringIO):
    """A stream to a terminal."""

    def isatty(self) -> bool:
        return True


def open_terminal(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    """Make the standard streams of this process a terminal; pytest replaces them after fixtures have run."""
    made = Terminal()
    monkeypatch.setattr(sys, "stdout", made)
    monkeypatch.setattr(sys, "stderr", made)
    monkeypatch.setattr(live_line, "has_live_line", lambda: True)
    monkeypatch.setattr(live_line, "terminal_columns", lambda: 80)
    return made


def shown(terminal: Terminal) -> list[str]:
    return screen(terminal.getvalue())


def test_log_lines_and_prints_appear_above_the_line(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = open_terminal(monkeypatch)
    handler = logging.StreamHandler()  # which keeps the stream of its creation
    log = logging.Logger("program")
    log.addHandler(handler)
    line = TerminalLine()
    line.show(lambda _: "step 1", now=True)
    log.warning("a warning")
    print("from", "the program")
    assert shown(terminal) == ["a warning", "from the program", "step 1"]
    print("epoch 1: ", end="")
    line.show(lambda _: "step 2", now=True)
    print("done")
    assert shown(terminal)[2:] == ["epoch 1: done", "step 2"]
    line.close()
    assert shown(terminal)[2:] == ["epoch 1: done"]
    assert "write" not in vars(terminal)


def test_the_line_is_drawn_a_few_times_a_second(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = open_terminal(monkeypatch)
    line = TerminalLine()
    line.show(lambda _: "step 1", now=True)
    line.show(lambda _: pytest.fail("drawn too early"))
    assert shown(terminal) == ["step 1"]
    line.close()


def test_a_forked_process_does_not_draw_the_line(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = open_terminal(monkeypatch)
    line = TerminalLine()
    line.show(lambda _: "step 1", now=True)
    before = terminal.getvalue()
    with monkeypatch.context() as child:
        child.setattr(live_line.os, "getpid", lambda: -1)
        print("a worker of the loader")
    assert terminal.getvalue() == before + "a worker of the loader\n"
    line.close()


def test_a_stream_that_the_program_has_changed_meanwhile_stays_changed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    terminal = open_terminal(monkeypatch)
    line = TerminalLine()

    def write(text: str) -> int:
        return len(text)

    terminal.write = write  # type: ignore[assignment]
    line.close()
    assert vars(terminal)["write"] is write


def test_no_line_where_the_streams_are_no_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    open_terminal(monkeypatch)
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    assert open_terminal_line() is None
    monkeypatch.setattr(sys, "stderr", None)
    assert open_terminal_line() is None


@pytest.mark.parametrize("interrupted", [False, True])
def test_a_training_run_shows_a_line_and_leaves_a_clean_terminal(
    interrupted: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    terminal = open_terminal(monkeypatch)
    monkeypatch.setattr(cs_runtime.progress, "_current", None)
    monkeypatch.setattr(cs_runtime.progress, "_newest", None)
    monkeypatch.setattr(cs_runtime.progress, "REDRAW_EVERY_S", 0.0)
    monkeypatch.setattr(live_line, "REDRAW_EVERY_S", 0.0)
    monkeypatch.delenv("CSRUN_LOG_DIR", raising=False)
    monkeypatch.setattr(cs_runtime.progress.log, "isEnabledFor", lambda level: True)
    progress = HostProgress(tmp_path, 0, 10, None)
    monkeypatch.setattr(cs_runtime.progress.log, "isEnabledFor", lambda level: False)
    progress.add(3, 24, lambda: 0.25)
    [text] = shown(terminal)
    assert text.startswith("step 3/10  loss 0.25  ")
    assert "samples/s" in text
    if interrupted:
        log_how_to_resume(KeyboardInterrupt())
    else:
        end_training(10)
    assert shown(terminal) == []
    assert "write" not in vars(terminal)


def test_a_program_that_silences_the_log_gets_no_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    terminal = open_terminal(monkeypatch)
    monkeypatch.setattr(cs_runtime.progress.log, "isEnabledFor", lambda level: level > logging.INFO)
    HostProgress(tmp_path, 0, 10, None).add(1, 8)
    end_training(1)
    assert terminal.getvalue() == ""
