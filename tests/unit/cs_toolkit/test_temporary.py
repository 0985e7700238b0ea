"""Temporary files and directories of processes that were killed are removed by the next process."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from cs_toolkit import temporary
from cs_toolkit.files import replace_file
from cs_toolkit.temporary import temporary_directory, temporary_file

_HOLD = """
import signal, sys
from pathlib import Path
from cs_toolkit import temporary

make = {"file": temporary.temporary_file, "directory": lambda path: temporary.temporary_directory(path.name)}
with make[sys.argv[1]](Path(sys.argv[2])) as path:
    print(path, flush=True)
    signal.pause()
"""


@contextmanager
def process_with(kind: str, path: Path) -> Iterator[tuple[Path, subprocess.Popen[str]]]:
    """Start a process that has a temporary file or directory; yield its path, and the process."""
    holder = subprocess.Popen(
        [sys.executable, "-c", _HOLD, kind, str(path)],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "TMPDIR": str(path.parent), "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert holder.stdout is not None
    try:
        yield Path(holder.stdout.readline().strip()), holder
    finally:
        holder.kill()
        holder.wait()
        holder.stdout.close()


def test_the_next_process_removes_the_file_of_a_killed_one(tmp_path: Path) -> None:
    with process_with("file", tmp_path / "checkpoint_7.mdl") as (left, holder):
        left.write_bytes(b"half")
        temporary._remove_unlocked.cache_clear()
        replace_file(tmp_path / "other", "")
        assert left.read_bytes() == b"half"  # still being written
        holder.send_signal(signal.SIGKILL)
        holder.wait()
        replace_file(tmp_path / "other", "")
        assert left.exists()  # a process looks once
        temporary._remove_unlocked.cache_clear()
        replace_file(tmp_path / "other", "")
        assert [path.name for path in tmp_path.iterdir()] == ["other"]


def test_other_files_stay(tmp_path: Path) -> None:
    name = ".checkpoint_7.mdl.1-0123abcd"
    (tmp_path / "target").touch()
    (tmp_path / name).symlink_to("target")
    (tmp_path / name.replace("7", "8")).mkdir()
    os.mkfifo(tmp_path / name.replace("7", "9"))
    (tmp_path / name[1:]).touch()
    (tmp_path / f"{name}.txt").touch()
    before = set(tmp_path.iterdir())
    with temporary_file(tmp_path / "new"):
        pass
    assert set(tmp_path.iterdir()) == before


def test_a_file_that_is_taken_for_a_leftover_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[Path] = []
    lock = temporary._lock_file

    def take_first(descriptor: int) -> bool | None:
        if not opened:
            opened.extend(tmp_path.iterdir())
            opened[0].unlink()
        return lock(descriptor)

    monkeypatch.setattr(temporary, "_lock_file", take_first)
    with temporary_file(tmp_path / "new") as path:
        assert path.exists()
        assert path != opened[0]


def test_a_file_system_without_locks_keeps_everything(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    left = tmp_path / ".new.1-0123abcd"
    left.touch()

    def refuse(*_: object) -> None:
        raise OSError(37, "No locks available")

    monkeypatch.setattr("fcntl.fcntl", refuse)
    replace_file(tmp_path / "new", "content")
    assert left.exists()
    assert (tmp_path / "new").read_text() == "content"


def test_the_next_process_removes_the_directory_of_a_killed_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with process_with("directory", tmp_path / "object-") as (left, holder):
        (left / "object").touch()
        (tmp_path / "object-file").touch()
        with temporary_directory("object-") as own:
            assert left.is_dir()
            assert own.is_dir()
        holder.send_signal(signal.SIGKILL)
        holder.wait()
        with temporary_directory("object-"):
            assert not left.exists()
    assert [path.name for path in tmp_path.iterdir()] == ["object-file"]
