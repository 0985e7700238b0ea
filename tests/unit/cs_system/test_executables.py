import hashlib
import os
from pathlib import Path

from cs_system.server.executables import ExecutableStore, default_cache_dir


def digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def put(store: ExecutableStore, data: bytes) -> str:
    store.put(digest(data), data)
    return digest(data)


def test_what_was_put_comes_back_also_in_another_server(tmp_path):
    key = put(ExecutableStore(tmp_path / "new" / "dir", 1000), b"program")
    assert ExecutableStore(tmp_path / "new" / "dir", 1000).get(key) == b"program"
    assert ExecutableStore(tmp_path, 1000).get(digest(b"other")) is None


def test_a_damaged_file_is_dropped(tmp_path, caplog):
    store = ExecutableStore(tmp_path, 1000)
    key = put(store, b"program")
    (tmp_path / key).write_bytes(b"progrAm")
    assert store.get(key) is None
    assert "is damaged" in caplog.text
    assert not (tmp_path / key).exists()


def test_the_longest_unused_ones_go_first(tmp_path):
    store = ExecutableStore(tmp_path, 30)
    keys = [put(store, bytes([n]) * 10) for n in range(3)]
    for age, key in enumerate(keys):
        os.utime(tmp_path / key, (0, 100 + age))
    assert store.get(keys[0]) is not None  # used now, so it is the newest
    put(store, b"x" * 10)
    assert [store.get(key) is not None for key in keys] == [True, False, True]


def test_what_is_larger_than_the_limit_is_not_kept(tmp_path):
    store = ExecutableStore(tmp_path, 5)
    assert store.get(put(store, b"123456")) is None
    assert list(tmp_path.iterdir()) == []


def test_a_directory_that_cannot_be_written_is_a_warning(tmp_path, caplog):
    (tmp_path / "file").write_text("")
    store = ExecutableStore(tmp_path / "file" / "dir", 100)
    assert store.get(put(store, b"program")) is None
    assert "is not kept" in caplog.text


def test_no_directory_keeps_nothing():
    store = ExecutableStore(None, 100)
    assert store.get(put(store, b"program")) is None


def test_default_directory_follows_xdg(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert default_cache_dir() == tmp_path / "cs_system"
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    monkeypatch.setenv("HOME", "/home/someone")
    assert default_cache_dir() == Path("/home/someone/.cache/cs_system")
