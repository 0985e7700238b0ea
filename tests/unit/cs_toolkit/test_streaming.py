"""What users may write about weight streaming."""

from __future__ import annotations

from typing import Any

import pytest

from cs_toolkit.streaming import Streaming, micro_batch_fault, streaming

DEFAULTS: dict[str, Any] = {
    "num_csx": 1,
    "max_act_per_csx": None,
    "recompute": None,
    "micro_batch_size": None,
}


@pytest.mark.parametrize(
    ("given", "limit_bytes"),
    [
        (None, None),
        (0, None),
        (1, None),
        (999, None),
        (1000, 1000),
        (16e9, 16 * 10**9),
        ("16 GB", 16 * 10**9),
        ("1.5mb", 1_500_000),
        ("4e9", 4 * 10**9),
        ("2048", 2048),
    ],
)
def test_a_limit_is_bytes_and_a_small_number_counts_servers(given: Any, limit_bytes: int | None) -> None:
    assert streaming(**DEFAULTS | {"max_act_per_csx": given}) == Streaming(max_act_bytes=limit_bytes)


@pytest.mark.parametrize("given", ["much", "16 GiB", "-1", -5, float("nan"), True, "1.2.3 GB", [1]])
def test_what_is_no_limit_is_refused(given: Any) -> None:
    with pytest.raises(ValueError, match="max_act_per_csx must be a number of bytes, a text such as '16 GB'"):
        streaming(**DEFAULTS | {"max_act_per_csx": given})


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"num_csx": 0}, "num_csx must be a whole number >= 1, got 0"),
        ({"num_csx": "2"}, "num_csx must be a whole number >= 1, got '2'"),
        ({"micro_batch_size": 0}, "micro_batch_size must be 1 or more samples, 'auto' or None, got 0"),
        ({"micro_batch_size": "half"}, "micro_batch_size must be 1 or more samples.* got 'half'"),
        ({"recompute": "some"}, "recompute must be one of auto, none, all or None, got 'some'"),
    ],
)
def test_other_values_that_cannot_be_are_refused(changes: dict[str, Any], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        streaming(**DEFAULTS | changes)


def test_a_micro_batch_divides_what_a_system_has_of_a_batch() -> None:
    assert micro_batch_fault(32, Streaming(micro_batch_size=8)) is None
    assert micro_batch_fault(30, Streaming(num_csx=2)) is None
    assert micro_batch_fault(32, Streaming(num_csx=2, micro_batch_size=8)) is None
    fault = micro_batch_fault(32, Streaming(num_csx=4, micro_batch_size=16))
    assert fault is not None
    assert "micro_batch_size is 16, expected a divisor of the batch of 32 samples, 8 in each of 4" in fault
