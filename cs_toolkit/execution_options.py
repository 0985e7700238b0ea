"""Options of an execution: replicas of a model on one wafer, and weight streaming."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, Literal, get_args

from cs_toolkit.errors import UsageError

AUTO: Literal["auto"] = "auto"
ReplicaChoice = int | Literal["auto"]
"""A number of replicas of the model on one wafer; auto chooses the one with the best predicted rate."""

_AUTO_NUMBER = -1  # auto in programs of the original stack


class ReplicaChoiceError(UsageError):
    """The number of replicas is invalid."""


def replica_choice(value: object) -> ReplicaChoice:
    """Parse a number of replicas from the run configuration, the command line or a message.

    Args:
        value: a whole number of 1 or more, "auto" or -1; a number may be text; None means 1.

    Raises:
        ReplicaChoiceError: for other values.
    """
    if value is None:
        return 1
    number = _number(value)
    if value == AUTO or number == _AUTO_NUMBER:
        return AUTO
    if number is None or number < 1:
        raise ReplicaChoiceError(
            f"num_replicas is {value!r}, expected a whole number of 1 or more, or 'auto' for the fastest "
            "number of copies of the model"
        )
    return number


def check_replicas(choice: ReplicaChoice, execution: str, num_csx: int, batch_size: int | None) -> None:
    """Check a number of replicas against the settings of a run.

    Args:
        choice: number of replicas.
        execution: of the run; may be "auto".
        num_csx: number of CS systems of the run.
        batch_size: samples of a step, if known.

    Raises:
        ReplicaChoiceError: they do not fit.
    """
    if choice in (AUTO, 1):
        return
    assert isinstance(choice, int)
    if execution == "weight_streaming" or num_csx > 1:
        conflict = f"num_csx {num_csx}" if num_csx > 1 else "execution 'weight_streaming'"
        raise ReplicaChoiceError(
            f"num_replicas is {choice} with {conflict}, expected 1: replicas are copies of a whole model on "
            "one wafer, weight streaming has one layer at a time there; remove one of the two"
        )
    if batch_size is not None and batch_size % choice:
        raise ReplicaChoiceError(
            f"a batch of {batch_size} samples cannot be shared equally by {choice} replicas; choose a "
            f"batch size that {choice} divides, or another num_replicas"
        )


def _number(value: object) -> int | None:
    """Return a whole number; None for other values."""
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    if isinstance(value, str):
        try:
            return int(value)
        except ValueError:
            return None
    return None


Recompute = Literal["auto", "none", "all"]
"""Layers that recompute their forward part in the backward pass; auto for as few as memory requires."""

RECOMPUTE_CHOICES: tuple[Recompute, ...] = get_args(Recompute)

# Smaller values of `max_act_per_csx` are numbers of activation servers in programs of the original stack.
SERVERS_BELOW = 1000

_UNIT_BYTES = {"": 1, "B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}
_SIZE = re.compile(r"([0-9.]+(?:e[0-9]+)?) *([KMGT]?B)?", re.IGNORECASE)


@dataclass(frozen=True)
class Streaming:
    """Options of weight streaming.

    Attributes:
        num_csx: number of systems that share a batch.
        max_act_bytes: limit of stored activations per system; None for the capacity of the wafer.
        recompute: layers that recompute their forward part.
        micro_batch_size: samples per system that pass through the layers together in training; "auto" for as
            many as fit the limit of activations.
    """

    num_csx: int = 1
    max_act_bytes: int | None = None
    recompute: Recompute = "auto"
    micro_batch_size: int | Literal["auto"] = "auto"


def streaming(*, num_csx: int, max_act_per_csx: Any, recompute: Any, micro_batch_size: Any) -> Streaming:
    """Parse the options of weight streaming.

    Args:
        num_csx: number of systems that share a batch.
        max_act_per_csx: bytes, a text with a unit such as "16 GB", or None; below `SERVERS_BELOW` it sets no
            limit.
        recompute: "auto", "none" or "all"; None for "auto".
        micro_batch_size: 1 or more samples, or "auto"; None for "auto".

    Raises:
        ValueError: a value is invalid; the message lists valid ones.
    """
    if not isinstance(num_csx, int) or isinstance(num_csx, bool) or num_csx < 1:
        raise ValueError(f"num_csx must be a whole number >= 1, got {num_csx!r}")
    if recompute is not None and recompute not in RECOMPUTE_CHOICES:
        raise ValueError(
            f"recompute must be one of {', '.join(RECOMPUTE_CHOICES)} or None, got {recompute!r}"
        )
    size: Any = "auto" if micro_batch_size is None else micro_batch_size
    if size != "auto" and (not isinstance(size, int) or isinstance(size, bool) or size < 1):
        raise ValueError(f"micro_batch_size must be 1 or more samples, 'auto' or None, got {size!r}")
    limit_bytes = _bytes(max_act_per_csx)
    return Streaming(
        num_csx=num_csx,
        max_act_bytes=None if limit_bytes < SERVERS_BELOW else limit_bytes,
        recompute=recompute or "auto",
        micro_batch_size=size,
    )


def micro_batch_error(batch_size: int, settings: Streaming) -> str | None:
    """Return why a batch cannot be divided into micro-batches of the given size; None if it can.

    Args:
        batch_size: samples of all systems.
        settings: of the run.
    """
    size, count = settings.micro_batch_size, settings.num_csx
    if size == "auto" or batch_size % (size * count) == 0:
        return None
    per_system = "" if count == 1 else f", {batch_size // count} in each of {count} systems"
    return (
        f"micro_batch_size is {size}, expected a divisor of the batch of {batch_size} samples{per_system}; "
        "choose one that divides, or auto"
    )


def _bytes(given: Any) -> int:
    if given is None:
        return 0
    match = _SIZE.fullmatch(given.strip()) if isinstance(given, str) else None
    try:
        if match:
            return int(float(match[1]) * _UNIT_BYTES[(match[2] or "").upper()])
        if isinstance(given, int | float) and not isinstance(given, bool) and 0 <= given < float("inf"):
            return int(given)
    except ValueError:  # more than one decimal point
        pass
    raise ValueError(
        f"max_act_per_csx must be a number of bytes, a text such as '16 GB', or None, got {given!r}"
    )
