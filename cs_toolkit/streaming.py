"""What a user decides about weight streaming: systems, memory for activations, and how it is kept."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, Literal, get_args

Recompute = Literal["auto", "none", "all"]
"""Which layers compute their forward part again in the backward pass; auto: as few as the memory asks for."""

RECOMPUTE_CHOICES: tuple[Recompute, ...] = get_args(Recompute)

SERVERS_BELOW = 1000
"""`max_act_per_csx` below this counts activation servers, as programs of the original stack do."""

_UNIT_BYTES = {"": 1, "B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}
_SIZE = re.compile(r"([0-9.]+(?:e[0-9]+)?) *([KMGT]?B)?", re.IGNORECASE)


@dataclass(frozen=True)
class Streaming:
    """How a step is executed where weights stream.

    Attributes:
        num_csx: systems that share a batch.
        max_act_bytes: activations that may wait in one system; None for what the wafer has room for.
        recompute: which layers compute their forward part again.
        micro_batch_size: samples of a system that go through the layers together in a training; "auto" for
            as many as let the activations fit.
    """

    num_csx: int = 1
    max_act_bytes: int | None = None
    recompute: Recompute = "auto"
    micro_batch_size: int | Literal["auto"] = "auto"


def streaming(*, num_csx: int, max_act_per_csx: Any, recompute: Any, micro_batch_size: Any) -> Streaming:
    """The settings of a run from what its user has written.

    Args:
        num_csx: systems that share a batch.
        max_act_per_csx: bytes, a text with a unit such as "16 GB", or None; below `SERVERS_BELOW` it sets no
            limit.
        recompute: "auto", "none" or "all"; None for "auto".
        micro_batch_size: 1 or more samples, or "auto"; None for "auto".

    Raises:
        ValueError: a value that cannot be; the message says what can.
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
    return Streaming(
        num_csx=num_csx,
        max_act_bytes=_limit_bytes(max_act_per_csx),
        recompute=recompute or "auto",
        micro_batch_size=size,
    )


def micro_batch_fault(batch_size: int, settings: Streaming) -> str | None:
    """Why a batch has no micro-batches of the size that was asked for; None where it has.

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


def _limit_bytes(given: Any) -> int | None:
    found = _bytes(given)
    return None if found < SERVERS_BELOW else found


def _bytes(given: Any) -> int:
    if given is None:
        return 0
    match = _SIZE.fullmatch(given.strip()) if isinstance(given, str) else None
    try:
        if match:
            return int(float(match[1]) * _UNIT_BYTES[(match[2] or "").upper()])
        if isinstance(given, int | float) and not isinstance(given, bool) and 0 <= given < float("inf"):
            return int(given)
    except ValueError:  # more than one point
        pass
    raise ValueError(
        f"max_act_per_csx must be a number of bytes, a text such as '16 GB', or None, got {given!r}"
    )
