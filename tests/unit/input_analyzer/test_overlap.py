"""What two readers of an input have in common, told by digests."""

from __future__ import annotations

import pytest

from input_analyzer.overlap import Overlap, Reading, overlap

SAME, SOME, NONE = Overlap.SAME, Overlap.SOME, Overlap.NONE


def reading(text: str) -> Reading:
    """A letter a record; a full stop is the end of the epoch."""
    return Reading(tuple(text.rstrip(".")), text.endswith("."))


@pytest.mark.parametrize(
    ("first", "other", "expected"),
    [
        ("abc", "abcd", SAME),  # cut off after a second
        ("abc", "abc.", SAME),
        ("abc.", "cab.", SAME),  # the whole epoch in another order
        ("abc", "acb", SOME),
        ("abc.", "abcd", SOME),  # one has an end that the other one does not have
        ("abcdef.", "defghi.", SOME),
        ("abcd.", "defg.", NONE),  # one record fills up what does not divide
        ("abcd", "defg", SOME),
        ("abc", "def", NONE),
        ("aaa.", "aaa.", None),
        ("a", "b", None),
        (".", ".", None),
    ],
)
def test_what_two_readers_have_in_common(first: str, other: str, expected: Overlap | None) -> None:
    ours, theirs = reading(first), reading(other)
    assert overlap(ours, theirs, ours) is expected


def test_of_records_that_change_by_themselves_nothing_is_known() -> None:
    assert overlap(reading("abc."), reading("def."), reading("ghi.")) is None
