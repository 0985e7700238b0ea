"""Whether two tasks, or two worker processes, read the same records, told by digests of these. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

PADDING = 0.02
"""Part of its records that a reader may share with another one, because they do not divide."""


class Overlap(Enum):
    """What two readers have in common."""

    SAME = "the same records"
    SOME = "some of the records"
    NONE = "no record"


@dataclass(frozen=True, slots=True)
class Reading:
    """What a reader has read of an epoch.

    Attributes:
        digests: one for each record, in the order in which they came.
        whole: these are all of the epoch; else reading was cut off.
    """

    digests: tuple[str, ...]
    whole: bool


def overlap(first: Reading, other: Reading, again: Reading) -> Overlap | None:
    """What two readers have in common.

    Args:
        first: what the first one reads.
        other: what the second one reads.
        again: what the first one reads when it begins once more, with the same random numbers.

    Returns:
        None where it cannot be told: records are all alike, or the first reader finds others each time.
    """
    if len(set(first.digests)) < 2 or not _alike(first, again):
        return None
    if _alike(first, other):
        return Overlap.SAME
    common = set(first.digests) & set(other.digests)
    few = max(1, PADDING * len(first.digests)) if first.whole and other.whole else 0
    return Overlap.NONE if len(common) <= few else Overlap.SOME


def _alike(one: Reading, other: Reading) -> bool:
    """Whether two epochs have the same records, or, of one that was cut off, begin with the same."""
    if one.whole and other.whole:
        return sorted(one.digests) == sorted(other.digests)
    common = min(len(one.digests), len(other.digests))
    shorter, longer = sorted((one, other), key=lambda reading: len(reading.digests))
    if shorter.whole and len(longer.digests) > common:
        return False
    return common > 0 and one.digests[:common] == other.digests[:common]
