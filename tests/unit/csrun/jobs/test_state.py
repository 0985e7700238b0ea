"""Lines about a wait in a queue: news at once, else one every ten seconds."""

from __future__ import annotations

from csrun.jobs.state import WaitLines


def test_changes_are_logged_immediately_and_otherwise_every_ten_seconds() -> None:
    due = WaitLines()
    assert due.line("place 2", "place 2", 100.0) == "place 2"
    assert due.line("place 2", "place 2", 105.0) is None
    assert due.line("place 2", "place 2", 110.0) == "place 2; it has waited for 10 s"
    assert due.line("place 1", "place 1", 112.0) == "place 1; it has waited for 12 s"
    assert due.line("place 1", "place 1", 121.9) is None
    assert due.line("place 1", "place 1", 122.0) == "place 1; it has waited for 22 s"


def test_an_unchanged_state_is_logged_at_intervals() -> None:
    due = WaitLines()
    due.line("place 1; expected start 10:00", "place 1", 0.0)
    assert due.line("place 1; expected start 10:01", "place 1", 5.0) is None
    assert due.line("place 1; expected start 10:02", "place 1", 10.0) == (
        "place 1; expected start 10:02; it has waited for 10 s"
    )


def test_a_wait_that_ends_and_comes_back_is_another_one() -> None:
    due = WaitLines()
    due.line("place 1", "place 1", 0.0)
    assert due.line("", "", 4.0) is None
    assert due.line("place 1", "place 1", 50.0) == "place 1"
    assert due.line("place 1", "place 1", 55.0) is None
