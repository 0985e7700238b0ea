"""The layout that an input analysis recommends, as `cs_input_analyzer --json FILE` writes it."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cs_toolkit.errors import UsageError

FORMAT_VERSION = 1
"""Of the files of an analysis; a change that breaks a reader raises it, further members do not."""


@dataclass(frozen=True, slots=True)
class Recommendation:
    """Nodes, tasks on each of them, CPUs of each task."""

    nodes: int
    tasks_per_node: int
    cpus_per_task: int


def read_recommendation(path: Path) -> Recommendation:
    """Reads the member `recommendation` of an analysis.

    Raises:
        UsageError: the file cannot be read, is of a version to come, or holds no such member with three
            whole numbers of at least 1.
    """
    try:
        analysis: Any = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageError(
            f"--recommendation: cannot read {path}: {error.strerror}; expected the file that "
            f"'cs_input_analyzer --json FILE' has written"
        ) from error
    except ValueError as error:
        raise UsageError(
            f"--recommendation: {path} is no JSON ({error}); expected the file that "
            f"'cs_input_analyzer --json FILE' has written"
        ) from error
    analysis = analysis if isinstance(analysis, dict) else {}
    version = analysis.get("format_version", FORMAT_VERSION)
    if type(version) is not int or version != FORMAT_VERSION:  # true would be equal to 1
        raise UsageError(
            f"--recommendation: {path} has format_version {json.dumps(version)}; expected {FORMAT_VERSION}: "
            f"write the file with the cs_input_analyzer that belongs to this csrun_wse"
        )
    found = analysis.get("recommendation")
    values = found if isinstance(found, dict) else {}
    counts: dict[str, Any] = {name: values.get(name) for name in ("nodes", "tasks_per_node", "cpus_per_task")}
    wrong = [name for name, count in counts.items() if type(count) is not int or count < 1]
    if wrong:
        raise UsageError(
            f"--recommendation: {path} has no usable recommendation.{', recommendation.'.join(wrong)}; "
            f"expected whole numbers of at least 1: write the file with 'cs_input_analyzer --json FILE'"
        )
    return Recommendation(**counts)
