"""What the doctor asks about jobs on this machine beyond what it asks about the machine itself."""

from __future__ import annotations

from collections.abc import Iterator

from csrun.doctor.findings import Finding
from csrun.doctor.here import port_finding


def checks() -> Iterator[Finding]:
    """Whether tasks can connect to each other."""
    yield port_finding(None)
