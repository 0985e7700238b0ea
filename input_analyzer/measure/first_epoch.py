"""The first epoch of a copy: its rate, and what it read from the disk. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

SHORTEST_S = 0.3
"""What is over sooner has no rate."""

_ALL = 0.98
"""When that part has been read, the rest is other things: a module that is imported late, a log."""
_AFTERWARDS = 0.25
"""So much of the time must nothing be read for files to count as all read."""


@dataclass(frozen=True, slots=True)
class Look:
    """What a copy had done by a certain time.

    Attributes:
        samples: that it had delivered.
        active_s: seconds of reading.
        disk_bytes: that it, with all below it, had read from disks; None where the kernel does not tell.
    """

    samples: float
    active_s: float
    disk_bytes: int | None


@dataclass(frozen=True, slots=True)
class FirstEpoch:
    """What is known of it.

    Attributes:
        samples_per_s: from its first batch on; None where it was too short, or its end is not known.
        disk_bytes_per_sample: from its begin on; None also where the kernel does not tell.
        over: it has ended, as far as can be seen.
    """

    samples_per_s: float | None = None
    disk_bytes_per_sample: float | None = None
    over: bool = False


def of_stretch(begin: Look, first: Look, end: Look) -> FirstEpoch:
    """Of an epoch, or as much of it as was measured.

    Args:
        begin: before anything was read.
        first: at the first samples.
        end: of the epoch, or of the measurement.
    """
    elapsed_s = end.active_s - first.active_s
    rate = (end.samples - first.samples) / elapsed_s if elapsed_s > SHORTEST_S else None
    return FirstEpoch(rate, _disk_bytes_per_sample(begin, end))


def of_cold_files(looks: Sequence[Look]) -> FirstEpoch:
    """Of an epoch of unknown size whose end was not seen, where all files were cold at its begin.

    It has ended at the latest when nothing more is read from the disk. Where that goes on, or nobody can
    tell, all that was measured belongs to it.

    Args:
        looks: the first before anything was read, the others in the order of time.
    """
    begin, last = looks[0], looks[-1]
    end = _all_read(looks)
    delivered = [look for look in looks if look.samples]
    if not delivered:
        return FirstEpoch()
    found = of_stretch(begin, delivered[0], end)
    elapsed_s, afterwards_s = last.active_s - begin.active_s, last.active_s - end.active_s
    over = afterwards_s > max(SHORTEST_S, _AFTERWARDS * elapsed_s)
    if found.samples_per_s is None:  # the looks are too far apart for what was read, too
        return FirstEpoch(over=over)
    return replace(found, over=over)


def _all_read(looks: Sequence[Look]) -> Look:
    begin, last = looks[0].disk_bytes, looks[-1].disk_bytes
    if begin is None or last is None or last <= begin:
        return looks[-1]
    enough = begin + _ALL * (last - begin)
    return next(look for look in looks if look.disk_bytes is not None and look.disk_bytes >= enough)


def _disk_bytes_per_sample(begin: Look, end: Look) -> float | None:
    if begin.disk_bytes is None or end.disk_bytes is None or not end.samples:
        return None
    return (end.disk_bytes - begin.disk_bytes) / end.samples
