from pathlib import Path

import pytest

from cs_system.engine.machine import cpu_digest
from cs_system.engine.xla_cache import XlaCache


def test_the_oldest_programs_are_deleted_at_the_start_and_later(tmp_path: Path) -> None:
    (tmp_path / cpu_digest()).mkdir()
    (tmp_path / cpu_digest() / "old").write_bytes(bytes(200))
    cache = XlaCache.of_this_cpu(tmp_path, 100)
    assert cache is not None
    assert not list(cache.directory.iterdir())
    for number in range(3):
        (cache.directory / str(number)).write_bytes(bytes(40))
    cache.trim()
    assert {path.name for path in cache.directory.iterdir()} == {"1", "2"}


def test_a_cache_that_cannot_be_made_is_done_without(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").touch()
    assert XlaCache.of_this_cpu(tmp_path / "file", 100) is None
    assert "compiled programs cannot be stored in" in caplog.text
