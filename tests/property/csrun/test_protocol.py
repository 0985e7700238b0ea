"""Messages arrive as they were sent, whatever pieces the stream comes in."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from csrun.agent.protocol import (
    Challenge,
    Credit,
    Decoder,
    Ended,
    Gone,
    Heartbeat,
    Hello,
    Interrupted,
    Message,
    Note,
    Orphaned,
    Output,
    ProtocolError,
    Refused,
    Signal,
    Start,
    Started,
    encode,
)

# Names of files may hold bytes that are no text; Python carries them as lone surrogates.
text = st.text(
    st.characters(codec="utf-8") | st.sampled_from(["\udc80", "\udcff", "\n", '"', "\\"]), max_size=20
)
number = st.integers(-(2**40), 2**40)
numbers = st.lists(number, max_size=4).map(tuple)
words = st.lists(text, max_size=4).map(tuple)
messages = st.one_of(
    st.builds(Challenge, text),
    st.builds(Hello, number, text, number, text, text, numbers, number, text, text),
    st.builds(
        Start,
        words,
        text,
        st.dictionaries(text, text, max_size=4),
        words,
        numbers,
        text,
        st.booleans(),
        text,
        st.floats(0, 1e6),
        st.floats(0, 1e6),
        text,
    ),
    st.builds(Started, number),
    st.builds(Refused, text, number),
    st.builds(Output, st.binary(max_size=200)),
    st.builds(Note, text),
    st.builds(Interrupted, number),
    st.builds(Ended, number),
    st.builds(Signal, number),
    st.builds(Credit, number),
    st.sampled_from([Heartbeat(), Gone(), Orphaned()]),
)


@given(st.lists(messages, max_size=6), st.data())
def test_messages_survive_the_wire_in_any_pieces(sent: list[Message], data: st.DataObject) -> None:
    wire = b"".join(encode(message) for message in sent)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(wire)), max_size=8)))
    decoder = Decoder()
    received: list[Message] = []
    for begin, end in zip([0, *cuts], [*cuts, len(wire)], strict=True):
        received += decoder.feed(wire[begin:end])
    assert received == sent


@given(st.binary(max_size=200))
def test_any_bytes_are_messages_or_refused(data: bytes) -> None:
    decoder = Decoder()
    try:
        for message in decoder.feed(data):
            assert Decoder().feed(encode(message))
    except ProtocolError:
        pass
