"""Slurm's way of writing times. Pure."""

from __future__ import annotations

import re

_UNLIMITED = ("infinite", "unlimited", "invalid", "n/a", "")
_FORMS = re.compile(
    r"(?:(?P<days>\d+)-(?P<day_hours>\d+)(?::(?P<day_minutes>\d+)(?::(?P<day_seconds>\d+))?)?)"
    r"|(?P<hours>\d+):(?P<minutes>\d+):(?P<seconds>\d+)"
    r"|(?P<only_minutes>\d+)(?::(?P<only_seconds>\d+))?"
)


def limit_seconds(text: str) -> float | None:
    """A time limit in seconds; infinity for none; None if the text is no time.

    MINUTES, MINUTES:SECONDS, HOURS:MINUTES:SECONDS, DAYS-HOURS, DAYS-HOURS:MINUTES and
    DAYS-HOURS:MINUTES:SECONDS are times (sbatch(1), --time).
    """
    plain = text.strip()
    if plain.lower() in _UNLIMITED:
        return float("inf")
    found = _FORMS.fullmatch(plain)
    if found is None:
        return None
    part = {name: int(value) for name, value in found.groupdict(default="0").items()}
    minutes = part["day_minutes"] + part["minutes"] + part["only_minutes"]
    hours = 24 * part["days"] + part["day_hours"] + part["hours"]
    return float(3600 * hours + 60 * minutes + part["day_seconds"] + part["seconds"] + part["only_seconds"])
