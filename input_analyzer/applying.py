"""The seam where an input function's result is mended for a run, as the environment orders it."""

from __future__ import annotations

import os
from collections.abc import Collection

VARIABLE = "CSRUN_INPUT_APPLY"
"""Identifiers of the findings to mend in the dataset graph of a run, separated by commas."""


def ordered() -> frozenset[str]:
    """The findings that this process is told to mend; none for a run as usual."""
    return frozenset(name for name in os.environ.get(VARIABLE, "").split(",") if name)


def order(findings: Collection[str]) -> dict[str, str]:
    """The environment that tells a process to mend these findings."""
    return {VARIABLE: ",".join(sorted(findings))} if findings else {}
