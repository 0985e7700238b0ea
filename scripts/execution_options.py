"""Write docs/reference/execution-options.md from the record of options.

Usage: `.venv/bin/python scripts/execution_options.py`.

A test fails if the page is older than the record.
"""

from __future__ import annotations

import os
import sys
from dataclasses import fields
from inspect import signature
from pathlib import Path
from typing import Any

from cs_toolkit.execution_options import (
    EXECUTION_VARIABLE,
    OPTIONS,
    SHARED_OPTIONS,
    configure_default_of,
    default_of,
)
from cstorch.distributed import ClusterConfig
from cstorch.startup import backend, configure
from estimator import CSRunConfig

PAGE = Path(__file__).resolve().parent.parent / "docs" / "reference" / "execution-options.md"
HEAD = """\
# Options of an execution

This page is generated from `cs_toolkit/execution_options.py` by `scripts/execution_options.py`.

These options determine how the CS system executes the steps of a program. They have the same names
and meanings everywhere. None selects the default. [Weight
streaming](../how-to/weight-streaming.md), [Replicas on one wafer](../how-to/replicas.md) and
[Precision](../how-to/precision.md) explain when to use them.

"""
PLACES = """\

## Where they can be set

"""
NOTES = """\

`runconfig` is the section of the parameter file of programs on `cstorch.runner`, and a flag is an
argument of their command line. Their argument `weight_streaming` or `pipelined` sets `execution`.
PyTorch programs select the precision with `amp` ([Precision](../how-to/precision.md)).
"""


def main() -> int:
    """Write the page."""
    os.environ.pop(EXECUTION_VARIABLE, None)  # python-ws changes a default
    PAGE.write_text(page(), encoding="utf-8")
    return 0


def page() -> str:
    """Return the text of the page."""
    return f"{HEAD}{option_table()}{PLACES}{place_table()}{NOTES}"


def option_table() -> str:
    """Return a table of the meaning, values and default of every option."""
    rows = [
        f"| `{name}` | {option.help} | {_code(option.expected)} | {_default(name)} |"
        for name, option in OPTIONS.items()
    ]
    return "\n".join(["| option | meaning | values | default |", "|---|---|---|---|", *rows, ""])


def place_table() -> str:
    """Return a table of the calls, files and flags that take every option."""
    takers = {
        "`CSRunConfig`": set(CSRunConfig._fields),
        "`cstorch.configure`": set(signature(configure).parameters),
        "`cstorch.backend`": set(signature(backend).parameters),
        "`ClusterConfig`": {field.name for field in fields(ClusterConfig)},
        "`runconfig`": set(SHARED_OPTIONS),
        "flag": {name for name, option in OPTIONS.items() if option.flag is not None},
    }
    head = ["option", *takers]
    rows = [[f"`{name}`", *("yes" if name in taken else "" for taken in takers.values())] for name in OPTIONS]
    lines = [head, ["---"] * len(head), *rows]
    return "".join(f"| {' | '.join(cells)} |\n" for cells in lines)


def _default(name: str) -> str:
    default, configured = default_of(name), configure_default_of(name)
    text = _value(default)
    return text if configured == default else f"{text}; {_value(configured)} in `cstorch.configure`"


def _value(value: Any) -> str:
    return f"`{value}`" if isinstance(value, str) else str(value)


def _code(expected: str) -> str:
    """Return the description of values with words as code."""
    start, words, choices = expected.partition("one of ")
    return words + ", ".join(f"`{choice}`" for choice in choices.split(", ")) if words else start


if __name__ == "__main__":
    sys.exit(main())
