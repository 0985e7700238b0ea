"""The seam where an input function's result is mended for a run, as the environment orders it."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

from input_analyzer.analysis import Finding, StageCost
from input_analyzer.lanes import lane_in_loader

VARIABLE = "CSRUN_INPUT_APPLY"
"""Identifiers of the findings to mend in the dataset graph of a run, separated by commas.

One that is about a number may have it behind a colon: `loader-workers-few:2` for two workers a CPU,
`loader-prefetch-memory:8` for a `prefetch_factor` of 8."""

PREFETCHING = frozenset({"prefetch-missing", "prefetch-not-last", "prefetch-empty"})
"""Findings that matter where something is done between two batches."""

WORKER_COUNTS = ("loader-workers-missing", "loader-workers-few", "loader-workers-many")
"""Findings whose mend is a number of worker processes."""

SPARING = frozenset({"loader-workers-many"})
"""Findings whose mend spares memory, which is no reason to be slower while there is memory enough."""

COMPARED = PREFETCHING | {
    *WORKER_COUNTS,
    *("parallel-calls-missing", "parallel-calls-fixed", "cycle-length-fixed", "flat-map-of-files"),
    *("parallel-reads-missing", "order-not-deterministic", "shuffle-buffer-small"),
    "loader-workers-restarted",
}
"""Findings that can be mended for a run and whose mending may change the rate of a worker."""


def optional(findings: Iterable[Finding]) -> tuple[str, ...]:
    """The findings that are mended for the rate of a worker, or for its memory: a slower mend is none."""
    found = [finding for finding in findings if finding.id in COMPARED and finding.proved]
    needed = {one.id for one in found if one.gain is not None and one.gain.kind == "not-speed"} - SPARING
    return tuple(dict.fromkeys(one.id for one in found if one.id not in needed))


def ordered() -> frozenset[str]:
    """The findings that this process is told to mend; none for a run as usual."""
    return frozenset(ordered_values())


def ordered_values() -> dict[str, float | None]:
    """The same with their numbers; None where none is given."""
    return values_in(filter(None, os.environ.get(VARIABLE, "").split(",")))


@contextmanager
def mending(findings: Iterable[str]) -> Iterator[None]:
    """This process mends these findings, too, for so long."""
    before = os.environ.get(VARIABLE)
    mend_from_here_on(findings)
    try:
        yield
    finally:
        os.environ.pop(VARIABLE, None)
        if before is not None:
            os.environ[VARIABLE] = before


def mend_from_here_on(findings: Iterable[str]) -> None:
    """This process mends these findings, too, until its end."""
    words = [*filter(None, os.environ.get(VARIABLE, "").split(",")), *findings]
    if words:
        os.environ[VARIABLE] = ",".join(words)


_LEAVES = "; --apply leaves it as it is: "


def left_alone(finding: Finding, reason: str) -> Finding:
    """A finding whose mend may deliver other records.

    Args:
        finding: The finding.
        reason: Why; a sentence without its full stop.
    """
    return replace(finding, recommended=f"{finding.recommended}{_LEAVES}{reason}", proved=False)


def reason_left(finding: Finding) -> str:
    """The reason that `left_alone` was given."""
    return finding.recommended.rpartition(_LEAVES)[2]


def values_in(words: Iterable[str]) -> dict[str, float | None]:
    """Identifiers of findings with the numbers behind their colons; None where there is none."""
    found: dict[str, float | None] = {}
    for word in words:
        name, _, value = word.partition(":")
        found[name] = float(value) if value else None
    return found


def order(findings: Collection[str]) -> dict[str, str]:
    """The environment that tells a process to mend these findings, each with its number where it has one."""
    return {VARIABLE: ",".join(sorted(findings))} if findings else {}


def values_of(findings: Iterable[Finding], cpus: int) -> dict[str, float | None]:
    """The numbers that mends of a torch DataLoader need.

    They are the recommended worker processes for each of the CPUs, or batches that each of them makes ahead.

    Args:
        findings: Each of them gets a value, where its mend is known to keep the records.
        cpus: Those that the worker processes are recommended for.

    Returns:
        By identifier; None where the mend needs no number; nothing for what is not proved.
    """
    values: dict[str, float | None] = {}
    for finding in filter(_is_proved, findings):
        number = finding.value if finding.id in _NUMBERED else None
        values[finding.id] = number / cpus if number and finding.id in WORKER_COUNTS else number
    return values


def _is_proved(finding: Finding) -> bool:
    return finding.proved


_NUMBERED = (*WORKER_COUNTS, "loader-prefetch-memory")


def as_mended(stages: Sequence[StageCost], findings: Iterable[Finding], cpus: int) -> tuple[StageCost, ...]:
    """Stages of a torch DataLoader in the lanes that they have when the number of its workers is mended.

    Args:
        stages: Of the loader as it is; other pipelines stay as they are.
        findings: That are mended.
        cpus: Those that the worker processes are recommended for.
    """
    values = values_of(findings, cpus)
    each = next((values[name] for name in WORKER_COUNTS if values.get(name)), None)
    if each is None:
        return tuple(stages)
    return tuple(replace(stage, lane=lane_in_loader(stage.op, 1, each)) for stage in stages)


def words_of(findings: Iterable[Finding], cpus: int) -> list[str]:
    """Findings as `order` takes them, with their numbers."""
    values = values_of(findings, cpus)
    return [name if value is None else f"{name}:{value:g}" for name, value in values.items()]
