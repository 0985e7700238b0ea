"""The frequency of garbage collections, and the objects that are freed when a process ends."""

from __future__ import annotations

import gc
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from cs_toolkit.garbage import (
    YOUNG_OBJECTS,
    freeze_objects,
    infrequent_collection,
    use_infrequent_collection,
)


@pytest.fixture(autouse=True)
def _limits_as_before(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    before = gc.get_threshold()
    gc.unfreeze()  # tests have frozen what was imported for them
    monkeypatch.setattr("cs_toolkit.garbage._was_frozen", False)
    yield
    gc.freeze()
    gc.set_threshold(*before)


def _searches(objects: int) -> int:
    """Count the collections that are started by making a number of objects."""
    count = 0

    def told(phase: str, _info: object) -> None:
        nonlocal count
        count += phase == "start"

    gc.collect(1)
    gc.callbacks.append(told)
    try:
        kept: list[list[object]] = [[] for _ in range(objects)]
    finally:
        gc.callbacks.remove(told)
    assert len(kept) == objects
    return count


def test_long_lived_objects_are_not_searched_repeatedly() -> None:
    gc.set_threshold(700, 10, 10)
    assert _searches(100_000) > 100
    with infrequent_collection():
        assert _searches(YOUNG_OBJECTS // 2) <= 1
    assert gc.get_threshold() == (700, 10, 10)


def test_a_process_that_stays_searches_seldom() -> None:
    gc.set_threshold(700, 10, 10)
    usual = _searches(100_000)
    use_infrequent_collection()
    assert 1 <= _searches(YOUNG_OBJECTS // 2) < usual * (YOUNG_OBJECTS / 200_000) / 50


def test_a_server_that_is_set_up_searches_as_usual_and_only_new_objects() -> None:
    use_infrequent_collection()
    old: list[object] = []
    freeze_objects()
    assert not any(each is old for each in gc.get_objects())
    assert _searches(10_000) > 2


def test_ops_that_stayed_are_not_searched_right_afterwards_either() -> None:
    gc.set_threshold(700, 10, 10)
    with infrequent_collection():
        kept: list[list[object]] = [[] for _ in range(YOUNG_OBJECTS // 2)]
    young = gc.get_objects(generation=0) + gc.get_objects(generation=1)
    assert len(kept) == YOUNG_OBJECTS // 2
    assert len(young) < 700 * 10


def test_earlier_objects_are_not_searched_as_new() -> None:
    gc.set_threshold(YOUNG_OBJECTS, 50, 50)
    kept: list[list[object]] = [[] for _ in range(YOUNG_OBJECTS // 2)]
    with infrequent_collection():
        assert gc.get_count()[0] < len(kept)


def test_frozen_weights_stay_frozen() -> None:
    gc.freeze()
    frozen = gc.get_freeze_count()
    for _ in range(3):
        with infrequent_collection():
            pass
    # Other threads may free some of theirs meanwhile; nothing is frozen where this does not hold.
    assert frozen / 2 < gc.get_freeze_count() <= frozen


def test_limits_come_back_after_an_error() -> None:
    gc.set_threshold(700, 10, 10)
    with pytest.raises(KeyError), infrequent_collection():
        raise KeyError
    assert gc.get_threshold() == (700, 10, 10)


@pytest.mark.parametrize("limits", [(0, 10, 10), (10 * YOUNG_OBJECTS, 100, 100)])
def test_a_program_that_wants_fewer_searches_has_them(limits: tuple[int, int, int]) -> None:
    gc.set_threshold(*limits)
    with infrequent_collection():
        assert gc.get_threshold() == limits


_PROGRAM = """
import sys
from cs_toolkit.garbage import leave_at_exit
if sys.argv[1] == "leave":
    leave_at_exit()
class Loud:
    def __del__(self):
        print("freed")
loud = Loud()
if len(sys.argv) > 2:
    file = open(sys.argv[2], "w")
    file.write("written")
"""


def _output(*words: str) -> str:
    command = [sys.executable, "-c", _PROGRAM, *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout


def test_a_process_ends_without_freeing_everything() -> None:
    assert _output("usual") == "freed\n"
    assert _output("leave") == ""


def test_what_a_file_that_nobody_closes_holds_is_written(tmp_path: Path) -> None:
    path = tmp_path / "file.txt"
    assert _output("leave", str(path)) == "freed\n"
    assert path.read_text() == "written"
