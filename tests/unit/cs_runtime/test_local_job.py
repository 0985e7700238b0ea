"""Workers next to a program: a command that is killed, and one that ends."""

from __future__ import annotations

from pathlib import Path

import pytest

from cs_runtime.local_job import MAX_STARTS, run_with_restarts


@pytest.mark.parametrize(
    ("ending", "starts", "code"),
    [
        ('[ "$(cat starts)" = "xxx" ] || kill -9 $$', 3, 0),
        ("exit 7", 1, 7),
        ("kill -15 $$", 1, 143),
        ("kill -9 $$", MAX_STARTS, 137),
    ],
)
def test_a_command_is_started_again_where_it_was_killed(
    ending: str, starts: int, code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run_with_restarts(["sh", "-c", f"printf x >> starts; {ending}"]) == code
    assert Path("starts").read_text() == "x" * starts
