"""Cuts of sequences of ops."""

from __future__ import annotations

import pytest

from cgc.layers.cut import OpSequence, layer_boundaries


def boundaries(labels: str, weights: dict[str, int], live: dict[str, int]) -> list[int]:
    """Build a sequence of ops named by letters; `live` is the data that crosses after an op."""
    live_bytes = [0, *(live.get(label, 100) for label in labels[:-1]), 0]
    return layer_boundaries(OpSequence(labels, [weights.get(label, 0) for label in labels], live_bytes))


@pytest.mark.parametrize(
    ("labels", "expected"),
    [
        ("eabcdabcdabcdh", [0, 1, 5, 9, 13, 14]),
        ("eabcdabcdh", [0, 1, 5, 9, 10]),
        # Half a copy in front of the whole ones goes to the rest.
        ("ecdabcdabcdabcdh", [0, 3, 7, 11, 15, 16]),
    ],
)
def test_what_repeats_is_cut_where_least_crosses(labels: str, expected: list[int]) -> None:
    assert boundaries(labels, {"a": 50, "c": 50, "e": 90, "h": 90}, {"d": 10, "e": 10}) == expected


def test_two_stacks_are_two_repeats() -> None:
    labels = "e" + "ab" * 3 + "f" + "xyz" * 4 + "h"
    found = boundaries(
        labels, {"a": 50, "x": 40, "e": 40, "f": 20, "h": 40}, {"b": 10, "z": 10, "e": 10, "f": 10}
    )
    assert found == [0, 1, 3, 5, 7, 8, 11, 14, 17, 20, 21]


def test_a_repeat_with_few_weights_is_no_reason_for_a_cut() -> None:
    assert boundaries("ababw", {"a": 1, "w": 1000}, {"b": 10}) == [0, 5]


def test_parts_of_a_layer_that_repeat_are_not_cut_apart() -> None:
    # Three projections within each of the two blocks.
    labels = "pppmo" * 2
    found = boundaries(labels, {"p": 10, "m": 100, "o": 10}, {"o": 10})
    assert found == [0, 5, 10]


def test_the_rest_is_cut_by_weights_where_least_crosses() -> None:
    found = boundaries(
        "abcdefgh", {"b": 60, "d": 60, "f": 60, "h": 60}, {"b": 5, "d": 1, "f": 5, "c": 50, "e": 50}
    )
    assert found == [0, 2, 4, 6, 8]
    assert boundaries("abc", {}, {}) == [0, 3]


def test_a_single_op_that_is_larger_than_a_layer_is_one() -> None:
    assert boundaries("ab", {"a": 1000, "b": 10}, {"a": 10}) == [0, 2]
    assert boundaries("", {}, {}) == [0]
