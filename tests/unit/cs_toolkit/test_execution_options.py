"""Numbers of replicas, and settings of weight streaming, as users write them."""

from __future__ import annotations

from typing import Any

import pytest

from cs_toolkit.errors import EXIT_USAGE
from cs_toolkit.execution_options import (
    ReplicaChoiceError,
    Streaming,
    check_replicas,
    micro_batch_error,
    replica_choice,
    streaming,
)


@pytest.mark.parametrize(
    ("said", "choice"), [(None, 1), (1, 1), (4, 4), ("4", 4), ("auto", "auto"), (-1, "auto"), ("-1", "auto")]
)
def test_what_users_and_programs_of_the_original_say(said: object, choice: object) -> None:
    assert replica_choice(said) == choice


@pytest.mark.parametrize("said", [0, -2, "0", "two", "", 2.0, True, [2]])
def test_anything_else_is_refused(said: object) -> None:
    with pytest.raises(ReplicaChoiceError, match="expected a whole number of 1 or more, or 'auto'") as error:
        replica_choice(said)
    assert repr(said) in str(error.value)
    assert error.value.exit_code == EXIT_USAGE


@pytest.mark.parametrize("choice", [1, "auto"])
def test_one_copy_and_auto_suit_every_run(choice: object) -> None:
    check_replicas(choice, "weight_streaming", 4, 7)


def test_a_batch_is_shared_equally() -> None:
    check_replicas(4, "pipelined", 1, 256)
    check_replicas(4, "auto", 1, None)
    with pytest.raises(ReplicaChoiceError, match="a batch of 256 samples cannot be shared equally by 3"):
        check_replicas(3, "pipelined", 1, 256)


@pytest.mark.parametrize(
    ("execution", "num_csx", "named"),
    [("weight_streaming", 1, "execution 'weight_streaming'"), ("auto", 2, "num_csx 2")],
)
def test_copies_of_a_whole_model_need_a_pipeline(execution: str, num_csx: int, named: str) -> None:
    with pytest.raises(ReplicaChoiceError, match=f"num_replicas is 2 with {named}, expected 1"):
        check_replicas(2, execution, num_csx, 256)


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
    assert micro_batch_error(32, Streaming(micro_batch_size=8)) is None
    assert micro_batch_error(30, Streaming(num_csx=2)) is None
    assert micro_batch_error(32, Streaming(num_csx=2, micro_batch_size=8)) is None
    fault = micro_batch_error(32, Streaming(num_csx=4, micro_batch_size=16))
    assert fault is not None
    assert "micro_batch_size is 16, expected a divisor of the batch of 32 samples, 8 in each of 4" in fault
