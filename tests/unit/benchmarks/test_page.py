"""The page of the benchmarks, where only some of them ran."""

from __future__ import annotations

from benchmarks.__main__ import updated
from benchmarks.harness import Row, table


def row(name: str, ours: str) -> Row:
    return Row(name, ours, "other", 1.0, "\u2264 1", True)


def test_new_rows_take_the_place_of_those_with_their_names() -> None:
    page = f"# Title\n\ntext\n\n{table([row('a', '1 s'), row('b', '2 s')])}\n\n* *a*: a note | with a bar\n"
    lines = updated(page, [row("b", "3 s"), row("c", "4 s")]).splitlines()
    assert lines == table([row("a", "1 s"), row("b", "3 s"), row("c", "4 s")]).splitlines()


def test_a_page_that_is_written_whole() -> None:
    rows = [row("a", "1 s"), row("a", "2 s")]  # passes of the compiler run more than once
    assert updated("", rows).splitlines() == table(rows).splitlines()
