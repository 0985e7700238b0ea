"""Rules that say what an input pipeline could do better, one file for each family of rules."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

from input_rules.findings import Finding
from input_rules.pipeline import Pipeline
from input_rules.rules import (
    batching,
    caching,
    determinism,
    endings,
    parallelism,
    python_code,
    reading,
    sharding,
    shuffling,
    types,
)
from input_rules.rules.context import Context

Rule = Callable[[Pipeline, Context], Iterator[Finding]]

RULES: tuple[Rule, ...] = (
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
_RANK = {"error": 0, "warning": 1, "info": 2}


def find(pipeline: Pipeline, context: Context, rules: Sequence[Rule] = RULES) -> tuple[Finding, ...]:
    """All findings, the gravest first, then in the order of the rules; by default those about tf.data."""
    found = [finding for rule in rules for finding in rule(pipeline, context)]
    # Two calls of one name on a line would say the same twice.
    return by_rank(dict.fromkeys(found))


def by_rank(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    """Findings, the gravest first, else in their order."""
    return tuple(sorted(findings, key=lambda finding: _RANK[finding.severity]))
