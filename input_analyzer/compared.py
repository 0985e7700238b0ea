"""Findings whose change is tried out to compare rates, in this analysis only. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from input_rules.findings import Finding

PREFETCHING = frozenset({"prefetch-missing", "prefetch-not-last", "prefetch-empty"})
"""Findings that matter where something is done between two batches."""

WORKER_COUNTS = ("loader-workers-missing", "loader-workers-few")
"""Findings that recommend a number of worker processes."""

COMPARED = PREFETCHING | {
    *WORKER_COUNTS,
    *("parallel-calls-missing", "parallel-calls-fixed", "cycle-length-fixed", "flat-map-of-files"),
    *("parallel-reads-missing", "loader-workers-restarted"),
}
"""Findings that are about speed alone, and whose change can be tried out."""


def values_of(findings: Iterable[Finding]) -> dict[str, int | None]:
    """Identifiers of the findings that are compared, with the numbers that they recommend."""
    return {one.id: one.value for one in findings if one.id in COMPARED}
