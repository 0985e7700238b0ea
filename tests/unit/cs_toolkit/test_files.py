"""Files that appear whole or not at all."""

from __future__ import annotations

import resource
from pathlib import Path

import pytest

from cs_toolkit.files import replace_file


def test_a_file_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / "state.json"
    for content in ("first", b"\xff\x00", "größer"):
        replace_file(path, content)
        assert path.read_bytes() == (content if isinstance(content, bytes) else content.encode())
    assert [file.name for file in tmp_path.iterdir()] == ["state.json"]


def test_an_error_keeps_the_previous_file(tmp_path: Path) -> None:
    path = tmp_path / "state.json"
    replace_file(path, "old")
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1, limits[1]))
    try:
        with pytest.raises(OSError, match="too large"):
            replace_file(path, "new")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert path.read_text() == "old"
    assert [file.name for file in tmp_path.iterdir()] == ["state.json"]


def test_files_have_their_permissions_from_the_start(tmp_path: Path) -> None:
    replace_file(tmp_path / "secret", "", mode=0o600)
    assert (tmp_path / "secret").stat().st_mode & 0o777 == 0o600


def test_a_missing_directory_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        replace_file(tmp_path / "nowhere" / "state.json", "{}")
