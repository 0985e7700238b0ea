"""Changes that findings recommend, written into the user's source."""

from __future__ import annotations

import os
import pty
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cs_toolkit.errors import UsageError
from csrun.errors import CsrunError
from input_analyzer import apply
from input_rules.findings import Finding

BEFORE = b"import tensorflow as tf\r\n\r\nd = d.batch(8)\r\n"
AFTER = b"import tensorflow as tf\r\n\r\nd = d.batch(8, drop_remainder=True)\r\n"
ANALYZER = Path(__file__).resolve().parents[3] / "bin" / "cs_input_analyzer"


@pytest.fixture(name="source")
def source_fixture(tmp_path: Path) -> Path:
    path = tmp_path / "data.py"
    path.write_bytes(BEFORE)
    path.chmod(0o750)
    return path


def shown(path: Path) -> Any:
    return apply.show("us", [Finding("drop-remainder-missing", "error", "batch", f"{path}:3", "", "")])


def git(folder: Path, *words: str) -> None:
    who = ("-c", "user.name=a", "-c", "user.email=a@b")
    subprocess.run(["git", "-C", str(folder), *who, *words], check=True, capture_output=True)


def test_a_diff_is_shown_and_the_file_stays_until_it_is_written(
    source: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    files = shown(source)
    assert "+d = d.batch(8, drop_remainder=True)" in capfd.readouterr().out
    assert source.read_bytes() == BEFORE
    apply.write("us", files, yes=True, allow_dirty=False)
    assert source.read_bytes() == AFTER, "line ends are kept"
    assert source.stat().st_mode & 0o777 == 0o750
    assert [path.name for path in source.parent.iterdir()] == ["data.py"]
    assert f"changed: {source}" in capfd.readouterr().err


def test_what_git_cannot_bring_back_is_refused_unless_told(source: Path) -> None:
    folder = source.parent
    git(folder, "init")
    files = shown(source)
    with pytest.raises(UsageError, match=r"data\.py: there are changes .* not committed.*--allow-dirty"):
        apply.write("us", files, yes=True, allow_dirty=False)
    assert source.read_bytes() == BEFORE
    git(folder, "add", ".")
    git(folder, "commit", "-m", "as it was")
    (folder / "other.py").write_text("x = 1\n")
    apply.write("us", files, yes=True, allow_dirty=False)
    assert source.read_bytes() == AFTER
    with pytest.raises(UsageError, match="not committed"):
        apply.write("us", files, yes=True, allow_dirty=False)
    source.write_bytes(BEFORE + b"x = 1\n")
    apply.write("us", shown(source), yes=True, allow_dirty=True)
    assert source.read_bytes() == AFTER + b"x = 1\n"


def test_a_file_that_has_changed_meanwhile_is_not_written(source: Path) -> None:
    files = shown(source)
    source.write_bytes(b"# again\n" + BEFORE)
    with pytest.raises(CsrunError, match="has changed since it was read"):
        apply.write("us", files, yes=True, allow_dirty=False)
    assert source.read_bytes() == b"# again\n" + BEFORE


@pytest.mark.parametrize(("answer", "after"), [("y\n", AFTER), ("\n", BEFORE), ("", BEFORE)])
def test_the_user_is_asked(
    source: Path,
    answer: str,
    after: bytes,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    read: Callable[[], str] = lambda: answer  # noqa: E731
    monkeypatch.setattr("sys.stdin", type("Keys", (), {"readline": staticmethod(read)}))
    apply.write("us", shown(source), yes=False, allow_dirty=False)
    assert capfd.readouterr().err.startswith("Write the changes to this file? [y/N] ")
    assert source.read_bytes() == after


def test_without_a_terminal_nobody_can_be_asked() -> None:
    with pytest.raises(UsageError, match="expected --yes, or --apply-dry-run"):
        apply.check_answerable(yes=False)
    apply.check_answerable(yes=True)


PROGRAM = """import tensorflow as tf

def f():
    return tf.data.Dataset.range(1000).repeat().batch(10)
"""


@pytest.mark.soak
@pytest.mark.timeout(240)
def test_the_command_writes_what_the_user_agrees_to(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text(PROGRAM)
    dry = [str(ANALYZER), "--apply-dry-run", "--seconds=1", "mine.py:f"]
    done = subprocess.run(dry, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    changed = PROGRAM.replace("batch(10)", "batch(10, drop_remainder=True).prefetch(tf.data.AUTOTUNE)")
    assert changed.splitlines()[-1] in done.stdout
    assert file.read_text() == PROGRAM, "the source stays as it is"
    ours, theirs = pty.openpty()
    try:
        words = [str(ANALYZER), "--apply", "--seconds=1", "mine.py:f"]
        asked = subprocess.Popen(words, cwd=tmp_path, stdin=theirs, stdout=theirs, stderr=theirs)
        os.write(ours, b"y\n")
        text = b""
        while b"changed: " not in text:
            text += os.read(ours, 4096)
        assert asked.wait(60) == 0
    finally:
        os.close(ours)
        os.close(theirs)
    assert file.read_text() == changed
