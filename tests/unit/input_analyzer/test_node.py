"""Files that are dropped from the page cache, the rest of them, and messages about failures."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from cs_toolkit.errors import UsageError
from input_analyzer.analysis import Measurement
from input_analyzer.measure.node import ColdFiles, check_has_files, walk_files
from input_analyzer.report.wording import cold_notes

from .resident_files import resident

SIZE = 3 << 20


def dropped_of(folder: Path) -> tuple[int, int]:
    """Number of the files that were dropped, and their bytes."""
    cold = ColdFiles("--cold", [folder])
    cold.drop(lambda doing: None)
    return cold.files, cold.size_bytes


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """A folder with a file that has been read, on a disk."""
    (tmp_path / "records").write_bytes(os.urandom(SIZE))
    dropped_of(tmp_path)
    if resident(tmp_path / "records"):
        pytest.skip("temporary files are in memory here")
    (tmp_path / "records").read_bytes()
    return tmp_path


def test_files_leave_the_memory(data: Path) -> None:
    assert resident(data / "records") == 1
    assert dropped_of(data) == (1, SIZE)
    assert resident(data / "records") == 0


def test_what_was_just_written_is_put_on_the_disk_first(data: Path) -> None:
    (data / "records").write_bytes(os.urandom(SIZE))
    dropped_of(data)
    assert resident(data / "records") == 0


def test_links_are_followed_and_every_folder_is_taken_once(tmp_path: Path) -> None:
    (tmp_path / "real" / "deep").mkdir(parents=True)
    (tmp_path / "real" / "deep" / "a").touch()
    (tmp_path / "given").mkdir()
    (tmp_path / "given" / "link").symlink_to(tmp_path / "real")
    (tmp_path / "given" / "file").symlink_to(tmp_path / "real" / "deep" / "a")
    (tmp_path / "real" / "deep" / "up").symlink_to(tmp_path / "real")
    (tmp_path / "given" / "broken").symlink_to(tmp_path / "nowhere")
    os.mkfifo(tmp_path / "given" / "pipe")
    found = sorted(os.path.relpath(path, tmp_path) for path in walk_files([tmp_path / "given"] * 2))
    assert found == ["given/file", "given/link/deep/a"]


def test_folders_that_cannot_be_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(
        UsageError, match=r"--cold: there is no file below '.*'; expected the files of the input"
    ):
        check_has_files("--cold", [tmp_path])
    (tmp_path / "a").touch()
    check_has_files("--cold", [tmp_path])

    def refused(path: str, flags: int) -> int:
        raise PermissionError(13, "Permission denied", path)

    monkeypatch.setattr("os.open", refused)
    with pytest.raises(UsageError, match=r"--cold: '.*/a' cannot be read: Permission denied; expected fold"):
        dropped_of(tmp_path)


@pytest.fixture
def dropped(tmp_path: Path) -> Callable[[float | None], str]:
    """The notes for what became of the files and the bytes that were then read for a sample of 4096."""

    def notes(read: float | None) -> str:
        cold = ColdFiles("--cold", [tmp_path])
        cold.files, cold.size_bytes = 2, 4 << 20
        one = Measurement(1, 1, 10.0, 9.0, 11.0, bytes_per_sample=4096.0)
        return " ".join(cold_notes(cold, [Measurement(**{**_fields(one), _READ: read})]))

    return notes


_READ = "first_epoch_disk_bytes_per_sample"


def _fields(one: Measurement) -> dict[str, object]:
    return {name: getattr(one, name) for name in one.__slots__}


def test_a_reader_learns_which_batches_were_dropped(
    dropped: Callable[[float | None], str],
) -> None:
    good = dropped(4000.0)
    assert "2 files below" in good
    assert "4 MiB in total, were dropped" in good
    assert "Hardly" not in good + dropped(None)
    assert "Hardly anything was read from a disk" in dropped(3.0)
