"""Rules that say what a torch DataLoader could do better. They import no torch."""

from __future__ import annotations

from input_rules import rules
from input_rules.findings import Finding
from input_rules.pipeline import Pipeline
from input_rules.rules import Rule, types
from input_rules.rules.context import Context
from input_rules.torch.rules import loader, workers

RULES: tuple[Rule, ...] = (*loader.RULES, *workers.RULES, *types.RULES)


def find(pipeline: Pipeline, context: Context) -> tuple[Finding, ...]:
    """All findings about a loader, the gravest first."""
    return rules.find(pipeline, context, RULES)
