"""The seam where an input function's result is mended for a run, as the environment orders it."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable

from input_analyzer.analysis import Finding

VARIABLE = "CSRUN_INPUT_APPLY"
"""Identifiers of the findings to mend in the dataset graph of a run, separated by commas.

One that is about a number may have it behind a colon: `loader-workers-few:2` for two workers a CPU."""

PREFETCHING = frozenset({"prefetch-missing", "prefetch-not-last", "prefetch-empty"})
"""Findings that matter where something is done between two batches."""

WORKER_COUNTS = ("loader-workers-missing", "loader-workers-few", "loader-workers-many")
"""Findings whose mend is a number of worker processes."""

COMPARED = PREFETCHING | {
    *WORKER_COUNTS,
    *("parallel-calls-missing", "parallel-calls-fixed", "cycle-length-fixed", "flat-map-of-files"),
    *("parallel-reads-missing", "order-not-deterministic", "shuffle-buffer-small"),
    "loader-workers-restarted",
}
"""Findings that can be mended for a run and whose mending may change the rate of a worker."""


def optional(findings: Iterable[Finding]) -> tuple[str, ...]:
    """The findings that are mended for the rate of a worker alone, so that a slower mend is none."""
    found = [finding for finding in findings if finding.id in COMPARED]
    needed = {one.id for one in found if one.gain is not None and one.gain.kind == "not-speed"}
    return tuple(dict.fromkeys(one.id for one in found if one.id not in needed))


def ordered() -> frozenset[str]:
    """The findings that this process is told to mend; none for a run as usual."""
    return frozenset(ordered_values())


def ordered_values() -> dict[str, float | None]:
    """The same with their numbers; None where none is given."""
    found: dict[str, float | None] = {}
    for word in filter(None, os.environ.get(VARIABLE, "").split(",")):
        name, _, value = word.partition(":")
        found[name] = float(value) if value else None
    return found


def order(findings: Collection[str]) -> dict[str, str]:
    """The environment that tells a process to mend these findings, each with its number where it has one."""
    return {VARIABLE: ",".join(sorted(findings))} if findings else {}


def values_of(findings: Iterable[Finding], cpus: int) -> dict[str, float | None]:
    """The numbers that mends need: recommended worker processes of a torch DataLoader for each of the CPUs.

    Args:
        findings: Each of them gets a value.
        cpus: Those that the worker processes are recommended for.

    Returns:
        By identifier; None where the mend needs no number.
    """
    return {
        finding.id: finding.value / cpus if finding.value and finding.id in WORKER_COUNTS else None
        for finding in findings
    }


def words_of(findings: Iterable[Finding], cpus: int) -> list[str]:
    """Findings as `order` takes them, with their numbers."""
    values = values_of(findings, cpus)
    return [name if value is None else f"{name}:{value:g}" for name, value in values.items()]
