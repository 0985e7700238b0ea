"""Files that appear whole or not at all."""

from __future__ import annotations

from pathlib import Path

import pytest

from cs_toolkit.files import replace_file


def test_a_file_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / "state.json"
    for content in ("first", b"\xff\x00", "größer"):
        replace_file(path, content)
        assert path.read_bytes() == (content if isinstance(content, bytes) else content.encode())
    assert [file.name for file in tmp_path.iterdir()] == ["state.json"]


def test_an_error_leaves_what_was_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "state.json"
    replace_file(path, "old")

    def full(self: Path, data: bytes) -> int:
        with self.open("wb") as file:
            file.write(data[:1])
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", full)
    with pytest.raises(OSError, match="No space"):
        replace_file(path, "new")
    assert path.read_text() == "old"
    assert [file.name for file in tmp_path.iterdir()] == ["state.json"]


def test_a_missing_directory_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        replace_file(tmp_path / "nowhere" / "state.json", "{}")
