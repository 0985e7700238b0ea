"""Rules that say what an input pipeline could do better, one file for each family of rules."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from input_analyzer.analysis import Finding
from input_analyzer.findings import (
    batching,
    caching,
    determinism,
    endings,
    parallelism,
    python_code,
    reading,
    sharding,
    shuffling,
    torch_loader,
    torch_workers,
    types,
)
from input_analyzer.findings.context import Context
from input_analyzer.pipeline import Pipeline

Rule = Callable[[Pipeline, Context], Iterator[Finding]]

TENSORFLOW_RULES: tuple[Rule, ...] = (
    *sharding.RULES,
    *shuffling.RULES,
    *batching.RULES,
    *endings.RULES,
    *parallelism.RULES,
    *reading.RULES,
    *caching.RULES,
    *python_code.RULES,
    *determinism.RULES,
    *types.RULES,
)
TORCH_RULES: tuple[Rule, ...] = (*torch_loader.RULES, *torch_workers.RULES, *types.RULES)
_RANK = {"error": 0, "warning": 1, "info": 2}


def find(pipeline: Pipeline, context: Context) -> tuple[Finding, ...]:
    """All findings, the gravest first, then in the order of the rules."""
    rules = TORCH_RULES if pipeline.framework == "torch" else TENSORFLOW_RULES
    found = [finding for rule in rules for finding in rule(pipeline, context)]
    # Two calls of one name on a line would say the same twice.
    return by_rank(dict.fromkeys(found))


def by_rank(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    """Findings, the gravest first, else in their order."""
    return tuple(sorted(findings, key=lambda finding: _RANK[finding.severity]))
