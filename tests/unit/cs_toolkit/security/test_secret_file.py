"""A secret that the processes of a user share through a file."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from cs_toolkit.security.secret_file import SecretFileError, read_secret, user_secret_file


def test_a_secret_is_made_once_and_only_its_user_can_read_it(tmp_path: Path) -> None:
    path = tmp_path / "made" / "for it" / "secret"
    with ThreadPoolExecutor(16) as pool:
        found = set(pool.map(read_secret, [path] * 64))
    assert len(found) == 1
    assert len(found.pop()) == 64
    assert path.stat().st_mode & 0o777 == 0o600
    assert path.parent.stat().st_mode & 0o777 == 0o700
    assert list(path.parent.iterdir()) == [path]
    assert read_secret(tmp_path / "other") != read_secret(path)


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o660])
def test_a_secret_that_others_can_read_is_refused(tmp_path: Path, mode: int) -> None:
    path = tmp_path / "secret"
    secret = read_secret(path)
    path.chmod(mode)
    with pytest.raises(SecretFileError, match=rf"got mode {mode:04o} and owner .*remove it") as refused:
        read_secret(path)
    assert secret not in str(refused.value)


def test_a_link_is_refused(tmp_path: Path) -> None:
    read_secret(tmp_path / "secret")
    (tmp_path / "link").symlink_to(tmp_path / "secret")
    with pytest.raises(SecretFileError, match="Too many levels of symbolic links"):
        read_secret(tmp_path / "link")


@pytest.mark.parametrize("content", ["", "short", "0" * 63, "g" * 64, "0" * 500])
def test_other_contents_are_refused(tmp_path: Path, content: str) -> None:
    path = tmp_path / "secret"
    path.write_text(content)
    path.chmod(0o600)
    with pytest.raises(SecretFileError, match="another content than 64 hexadecimal digits; remove the file"):
        read_secret(path)


def test_a_directory_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(SecretFileError, match=r"the secret in .*file/secret: Not a directory; "):
        read_secret(tmp_path / "file" / "secret")


def test_the_file_of_a_user() -> None:
    assert user_secret_file("s", {"XDG_CONFIG_HOME": "/c", "HOME": "/h"}) == Path("/c/csrun/s")
    assert user_secret_file("s", {"XDG_CONFIG_HOME": "relative", "HOME": "/h"}) == Path("/h/.config/csrun/s")
    with pytest.raises(SecretFileError, match="no directory for the secret 's': HOME is ''"):
        user_secret_file("s", {})
