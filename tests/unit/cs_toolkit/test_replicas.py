"""How many copies of a model a user may want."""

from __future__ import annotations

import pytest

from cs_toolkit.errors import EXIT_USAGE
from cs_toolkit.replicas import ReplicaChoiceError, check_replicas, replica_choice


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
