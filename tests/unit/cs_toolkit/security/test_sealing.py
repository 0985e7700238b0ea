"""Tags of frames, and sealed secrets."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cs_toolkit.security.proofs import derive_key
from cs_toolkit.security.sealing import TAG_BYTES, FrameKey, SealError, SealingKey, seal

KEY = FrameKey(derive_key("secret", "test", "nonce"))
repeatable = settings(derandomize=True, deadline=None)
frames = st.tuples(
    st.integers(0, 255),
    st.integers(0, 2**64 - 1),
    st.binary(max_size=20),
    st.lists(st.binary(max_size=20), max_size=4),
)


@repeatable
@given(frames, frames)
def test_the_tag_depends_on_every_part(
    frame: tuple[int, int, bytes, list[bytes]], other: tuple[int, int, bytes, list[bytes]]
) -> None:
    tag = KEY.tag(*frame)
    assert len(tag) == TAG_BYTES
    assert KEY.is_tag(tag, *frame)
    # The head determines the number and the sizes of the parts, so that frames with the same have the same.
    if [len(part) for part in frame[3]] == [len(part) for part in other[3]]:
        assert KEY.is_tag(tag, *other) == (frame == other)


def test_a_key_is_that_of_one_secret_one_use_and_one_connection() -> None:
    keys = {
        derive_key("secret", "test", "nonce"),
        derive_key("secret2", "test", "nonce"),
        derive_key("secret", "test2", "nonce"),
        derive_key("secret", "test", "nonce2"),
        derive_key("secret", "test", "non", "ce"),
    }
    assert len({FrameKey(key).tag(0, 0, b"head") for key in keys}) == 5


def test_a_part_of_several_gibibytes_is_authenticated_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cs_toolkit.security.sealing._MAX_PART_BYTES", 16)
    monkeypatch.setattr("cs_toolkit.security.sealing._COPIED_BYTES", 8)
    data = bytearray(range(100))
    tag = KEY.tag(0, 0, b"", [data])
    for index in range(100):
        data[index] ^= 0x80
        assert not KEY.is_tag(tag, 0, 0, b"", [data])
        data[index] ^= 0x80
    assert KEY.is_tag(tag, 0, 0, b"", [data])


def test_a_sealed_secret_is_opened_by_its_reader_only() -> None:
    reader = SealingKey()
    sealed = seal(b"the token", reader.public)
    assert b"token" not in sealed
    assert reader.open(sealed) == b"the token"
    assert seal(b"the token", reader.public) != sealed
    with pytest.raises(SealError, match="changed in transit, or is for another process"):
        SealingKey().open(sealed)


def test_a_sealed_secret_that_has_changed_is_refused() -> None:
    reader = SealingKey()
    sealed = seal(b"the token", reader.public)
    for index in range(len(sealed)):
        changed = bytearray(sealed)
        changed[index] ^= 1
        with pytest.raises(SealError):
            reader.open(bytes(changed))
    for length in (0, 5, 32, len(sealed) - 1):
        with pytest.raises(SealError):
            reader.open(sealed[:length])


def test_a_public_key_of_another_size_is_refused() -> None:
    with pytest.raises(SealError, match="got 3 bytes, expected a public key"):
        seal(b"the token", b"abc")
