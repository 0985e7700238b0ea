"""Ends of a user's program: exit codes, messages, crash files."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from cs_runtime.errors import CallError
from cs_runtime.exits import report_errors
from cs_runtime.progress import Progress
from cs_system.client import StepOutputs


class _ExpectedError(Exception):
    exit_code = 1


@pytest.mark.parametrize(("error", "code"), [(_ExpectedError("disk full"), 1), (CallError("bad call"), 2)])
def test_expected_errors_are_one_message(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], error: Exception, code: int
) -> None:
    with pytest.raises(SystemExit) as caught, report_errors(tmp_path):
        raise error
    assert caught.value.code == code
    assert capsys.readouterr().err == f"error: {error}\n"
    assert not list(tmp_path.iterdir())


def test_an_error_of_the_program_shows_its_traceback(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as caught, report_errors(tmp_path):
        raise ZeroDivisionError("by zero")
    assert caught.value.code == 1
    shown = capsys.readouterr().err
    assert "Traceback" in shown
    assert "ZeroDivisionError: by zero" in shown
    assert not list(tmp_path.iterdir())


def test_a_bug_of_the_toolkit_leaves_a_crash_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    @report_errors(tmp_path / "crashes")
    def main() -> None:
        Progress(0, 1, None, tmp_path).add(StepOutputs(0, 1, {}, 1))

    with pytest.raises(SystemExit) as caught:
        main()
    assert caught.value.code == 3
    [path] = (tmp_path / "crashes").iterdir()
    assert "KeyError: 'output_loss'" in path.read_text()
    shown = capsys.readouterr().err
    assert "Traceback" in shown
    assert str(path) in shown


def test_the_last_line_is_the_message_of_an_error(capsys: pytest.CaptureFixture[str]) -> None:
    """A message is summarized by its first line, an empty one by its class."""
    told = {}
    for error in (ValueError("no such record\nin 40 lines"), ValueError()):
        with pytest.raises(SystemExit), report_errors():
            raise error
        told[str(error)] = capsys.readouterr().err.splitlines()[-1]
    assert list(told.values()) == ["error: ValueError: no such record", "error: ValueError: ValueError"]
    with pytest.raises(SystemExit), report_errors(essence=lambda error: "in short"):
        raise ValueError("at length")
    assert capsys.readouterr().err.splitlines()[-1] == "error: ValueError: in short"


def test_ctrl_c_exits_with_130() -> None:
    with pytest.raises(SystemExit) as caught, report_errors():
        raise KeyboardInterrupt
    assert caught.value.code == 130


PROGRAM = """
import atexit, sys
from cs_runtime.errors import CallError
from cs_runtime.exits import report_at_exit
class Loud:
    def __del__(self): print("freed, which takes PyTorch a second")
loud = Loud()
if sys.argv[1] == "own hook":
    sys.excepthook = lambda *error: print("the program's own words")
report_at_exit(lambda error: print(type(error).__name__))
atexit.register(print, "tidied up")
raise {
    "expected": CallError("bad call"),
    "line told": CallError("a.py:3: bad call"),
    "own hook": CallError("bad call"),
    "stop": KeyboardInterrupt(),
}[sys.argv[1]]
"""


@pytest.mark.parametrize(
    ("how", "code", "out", "err"),
    [
        ("expected", 2, "CallError\ntidied up\n", "error: bad call\n  at FILE:12\n"),
        ("line told", 2, "CallError\ntidied up\n", "error: a.py:3: bad call\n"),
        ("stop", 130, "KeyboardInterrupt\ntidied up\n", "interrupted\n"),
        ("own hook", 1, "the program's own words\ntidied up\n", ""),
    ],
)
def test_a_program_whose_main_is_its_own_ends_as_others_do(
    how: str, code: int, out: str, err: str, tmp_path: Path
) -> None:
    program = tmp_path / "run.py"
    program.write_text(PROGRAM)
    ended = subprocess.run(
        [sys.executable, program.name, how], capture_output=True, text=True, check=False, cwd=tmp_path
    )
    assert (ended.returncode, ended.stdout, ended.stderr) == (code, out, err.replace("FILE", str(program)))
