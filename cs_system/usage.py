"""Accounting: what each reservation of a system used, and sums by user or job. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Any, Literal, get_args

GroupBy = Literal["user", "job"]
GROUPINGS: tuple[GroupBy, ...] = get_args(GroupBy)


@dataclass(frozen=True)
class UsageRecord:
    """A reservation.

    Attributes:
        job: Name of the job.
        owner: USER@HOST of its chief.
        since, until: Seconds since the epoch.
        wafers: Number of wafers that shared a batch.
        steps, samples: Computed ones.
        execution: Execution mode of the last program; empty if none was loaded.
        artifact: Key of that program.
        end: Why the reservation ended.
    """

    job: str
    owner: str
    since: float
    until: float
    wafers: int
    steps: int
    samples: int
    execution: str
    artifact: str
    end: str

    @property
    def wafer_s(self) -> float:
        """Wafer-seconds."""
        return self.wafers * max(0.0, self.until - self.since)

    def to_json(self) -> dict[str, Any]:
        """Return the fields of a line of the log, with times in UTC."""
        return {
            **asdict(self),
            "since": _iso(self.since),
            "until": _iso(self.until),
            "wafer_hours": round(self.wafer_s / 3600, 6),
        }


def record_from_json(fields: dict[str, Any]) -> UsageRecord:
    """Read `UsageRecord.to_json`; unknown fields are ignored.

    Raises:
        ValueError, LookupError, TypeError: it is no record.
    """
    try:
        found = UsageRecord(
            str(fields["job"]),
            str(fields["owner"]),
            datetime.fromisoformat(fields["since"]).timestamp(),
            datetime.fromisoformat(fields["until"]).timestamp(),
            int(fields["wafers"]),
            int(fields["steps"]),
            int(fields["samples"]),
            str(fields["execution"]),
            str(fields["artifact"]),
            str(fields["end"]),
        )
    except OverflowError as error:
        raise ValueError(str(error)) from None
    if not all(0 <= count < 1 << 63 for count in (found.wafers, found.steps, found.samples)):
        raise ValueError("a count is out of range")
    return found


@dataclass(frozen=True)
class UsageSum:
    """The use of a system by one user or job.

    Attributes:
        name: The user or job.
        owner: Of a job; empty for a user.
        reservations: Number of reservations.
        wafer_s: Wafer-seconds.
        steps, samples: Computed ones.
    """

    name: str
    owner: str
    reservations: int
    wafer_s: float
    steps: int
    samples: int

    def to_json(self) -> dict[str, Any]:
        """Return plain values, with wafer-hours."""
        values = asdict(self)
        return {**values, "wafer_hours": values.pop("wafer_s") / 3600}


def sum_usage(records: Iterable[UsageRecord], since: float, until: float, by: GroupBy) -> list[UsageSum]:
    """Sum the records in a period by user or job, the largest use first.

    Of a reservation that began before the period or ended after it, the part in the period counts.
    """
    parts = []
    for record in records:
        part = _part_in(record, since, until)
        if part is None:
            continue
        # The same user on several hosts is one user.
        key = (record.owner.partition("@")[0], "") if by == "user" else (record.job, record.owner)
        steps, samples = round(part * record.steps), round(part * record.samples)
        parts.append(UsageSum(*key, 1, part * record.wafer_s, steps, samples))
    return merge_sums(parts)


def merge_sums(sums: Iterable[UsageSum]) -> list[UsageSum]:
    """Add sums of equal names, such as those of several systems; the largest use first."""
    merged: dict[tuple[str, str], UsageSum] = {}
    for one in sums:
        key = (one.name, one.owner)
        other = merged.get(key, UsageSum(*key, 0, 0.0, 0, 0))
        merged[key] = UsageSum(
            *key,
            one.reservations + other.reservations,
            one.wafer_s + other.wafer_s,
            one.steps + other.steps,
            one.samples + other.samples,
        )
    return sorted(merged.values(), key=lambda one: (-one.wafer_s, one.name, one.owner))


def _part_in(record: UsageRecord, since: float, until: float) -> float | None:
    """Return the part of a reservation in a period; None if it is outside."""
    first, last = max(record.since, since), min(record.until, until)
    if last < first or (last == first and record.until > record.since):
        return None
    return (last - first) / (record.until - record.since) if record.until > record.since else 1.0


def _iso(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds")
