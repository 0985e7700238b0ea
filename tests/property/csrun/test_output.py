"""Lines are the same however the bytes are cut into pieces."""

from __future__ import annotations

import re

from hypothesis import given
from hypothesis import strategies as st

from csrun.jobs.output import MAX_LINE_BYTES, LineSplitter, printable

# Line ends must be frequent to be interesting.
streams = st.lists(
    st.one_of(st.binary(max_size=12), st.sampled_from([b"\n", b"\r", b"\r\n", b"\r\r", b"text"])), max_size=30
).map(b"".join)


def split(pieces: list[bytes]) -> list[tuple[bytes, bool]]:
    splitter = LineSplitter()
    found = [item for piece in pieces for item in splitter.feed(piece)]
    return found + list(splitter.finish())


@given(streams, st.lists(st.integers(1, 9), max_size=40))
def test_pieces_do_not_matter(stream: bytes, sizes: list[int]) -> None:
    pieces, position = [], 0
    for size in sizes:
        pieces.append(stream[position : position + size])
        position += size
    pieces.append(stream[position:])
    assert split(pieces) == split([stream])


@given(streams)
def test_every_line_comes_in_order_and_nothing_but_line_ends_is_lost(stream: bytes) -> None:
    items = split([stream])
    assert b"".join(text for text, _ in items) == re.sub(rb"[\r\n]", b"", stream)
    whole_lines = [text for text, is_line in items if is_line]
    assert len(whole_lines) - stream.count(b"\n") in (0, 1)


@given(st.integers(0, 3 * MAX_LINE_BYTES), st.integers(1, 100_000))
def test_lines_of_any_length_lose_nothing_and_no_piece_is_too_long(length: int, piece: int) -> None:
    line = b"x" * length + b"\n"
    items = split([line[start : start + piece] for start in range(0, len(line), piece)])
    assert b"".join(text for text, _ in items) == line[:-1]
    assert max(len(text) for text, _ in items) <= MAX_LINE_BYTES


@given(st.binary(max_size=60))
def test_printed_text_has_no_control_characters_but_tabs_and_colors(line: bytes) -> None:
    text = re.sub(r"\x1b\[[0-9;:]*m", "", printable(line))
    assert all(
        character == "\t" or not (ord(character) < 32 or 127 <= ord(character) < 160) for character in text
    )


@given(st.text(st.characters(exclude_categories=["Cc", "Cs"]), max_size=60))
def test_text_is_printed_as_it_is(text: str) -> None:
    assert printable(text.encode()) == text
