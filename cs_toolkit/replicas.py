"""How many copies of a model a user wants on one wafer."""

from __future__ import annotations

from typing import Literal

from cs_toolkit.errors import UsageError

AUTO: Literal["auto"] = "auto"
ReplicaChoice = int | Literal["auto"]
"""A number of copies; auto is the one with the best predicted rate."""

_AUTO_OF_PROGRAMS = -1
"""How programs of the original stack write auto."""


class ReplicaChoiceError(UsageError):
    """A number of copies that cannot be."""


def replica_choice(value: object) -> ReplicaChoice:
    """What a user says in the run configuration, on the command line or in a message of the original stack.

    Args:
        value: a whole number of 1 or more, "auto" or -1; a number may be text; None stands for 1.

    Raises:
        ReplicaChoiceError: anything else.
    """
    if value is None:
        return 1
    number = _number(value)
    if value == AUTO or number == _AUTO_OF_PROGRAMS:
        return AUTO
    if number is None or number < 1:
        raise ReplicaChoiceError(
            f"num_replicas is {value!r}, expected a whole number of 1 or more, or 'auto' for as many copies "
            "of the model as are fastest"
        )
    return number


def check_replicas(choice: ReplicaChoice, execution: str, num_csx: int, batch_size: int | None) -> None:
    """Whether so many copies can be, as far as the settings of a run tell.

    Args:
        choice: what the user wants.
        execution: of the run, "auto" among them.
        num_csx: CS systems of the run.
        batch_size: samples of a step, where known.

    Raises:
        ReplicaChoiceError: they cannot.
    """
    if choice in (AUTO, 1):
        return
    assert isinstance(choice, int)
    if execution == "weight_streaming" or num_csx > 1:
        what = f"num_csx {num_csx}" if num_csx > 1 else "execution 'weight_streaming'"
        raise ReplicaChoiceError(
            f"num_replicas is {choice} with {what}, expected 1: replicas are copies of a whole model on one "
            "wafer, weight streaming has a layer at a time there; leave one of the two out"
        )
    if batch_size is not None and batch_size % choice:
        raise ReplicaChoiceError(
            f"a batch of {batch_size} samples cannot be shared equally by {choice} replicas; choose a batch "
            f"size that {choice} divides, or another num_replicas"
        )


def _number(value: object) -> int | None:
    """A whole number, or None for what is none."""
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    if isinstance(value, str):
        try:
            return int(value)
        except ValueError:
            return None
    return None
