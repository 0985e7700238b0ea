"""What a terminal shows of a task's bytes."""

from __future__ import annotations

import pytest

from csrun.output import MAX_LINE_BYTES, TAIL_LINES, TaskOutput, printable, task_prefix


@pytest.fixture
def output() -> TaskOutput:
    return TaskOutput("chief | ")


def test_a_line_is_shown_when_it_is_whole(output: TaskOutput) -> None:
    assert output.feed(b"hel", 0.0) == ""
    assert output.feed(b"lo\nwor", 0.1) == "chief | hello\n"
    assert output.finish(0.2) == "chief | wor\n"
    assert output.finish(0.3) == ""


def test_a_line_that_takes_long_is_shown_as_far_as_it_is(output: TaskOutput) -> None:
    output.feed(b"compiling ...", 0.0)
    assert output.waiting
    assert output.tick(0.9) == ""
    assert output.tick(1.0) == "chief | compiling ...\n"
    assert not output.waiting
    assert output.tick(9.0) == ""
    assert output.feed(b" done\n", 10.0) == "chief | compiling ... done\n"


def test_of_a_progress_display_one_state_a_second_is_shown_and_the_last(output: TaskOutput) -> None:
    shown = "".join(output.feed(f"\r{percent}%".encode(), percent / 10) for percent in range(30))
    assert shown.splitlines() == ["chief | 10%", "chief | 20%"]
    assert output.feed(b"\r100%\n", 3.0) == "chief | 100%\n"
    assert output.tick(9.0) == ""
    assert output.tail == ["100%"]


def test_windows_line_ends_are_line_ends(output: TaskOutput) -> None:
    assert output.feed(b"a\r", 0.0) == ""
    assert output.feed(b"\nb\r\n", 0.0) == "chief | a\nchief | b\n"


def test_empty_lines_stay(output: TaskOutput) -> None:
    assert output.feed(b"\n\n", 0.0) == "chief | \nchief | \n"


def test_a_line_without_end_comes_in_pieces_that_cut_no_character(output: TaskOutput) -> None:
    text = "x" + "é" * MAX_LINE_BYTES
    shown = output.feed(text.encode(), 0.0) + output.finish(0.0)
    lines = shown.splitlines()
    assert len(lines) == 3
    assert "".join(line.removeprefix("chief | ") for line in lines) == text


def test_binary_output_cannot_change_the_terminal() -> None:
    assert printable(b"\x00\x1b[2J\x1b]0;title\x07 \xff\x9b2J\xc2\x9b ok\t.") == (
        "\\x00\\x1b[2J\\x1b]0;title\\x07 \\xff\\x9b2J\\x9b ok\t."
    )


def test_colours_stay_and_end_with_the_line() -> None:
    assert printable(b"\x1b[1;31mred") == "\x1b[1;31mred\x1b[0m"


def test_the_tail_is_the_last_lines_cut_to_a_readable_length(output: TaskOutput) -> None:
    output.feed(b"".join(b"line %d\n" % number for number in range(100)), 0.0)
    assert output.tail == [f"line {number}" for number in range(100 - TAIL_LINES, 100)]
    output.feed(b"y" * 10_000 + b"\n", 0.0)
    assert len(output.tail[-1]) < 2_100


def test_prefixes() -> None:
    assert task_prefix("worker 0", 1, coloured=False) == "worker 0 | "
    coloured = task_prefix("chief", 0, coloured=True)
    assert coloured.startswith("\x1b[")
    assert coloured.endswith("\x1b[0m ")
    assert coloured != task_prefix("chief", 1, coloured=True)
