"""The rate that a training could use: what the newest compile report estimates for the wafer."""

from __future__ import annotations

import json
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from cgc.manifest import REPORT_JSON
from input_analyzer.analysis import Target


def target_of_report(folders: Iterable[Path]) -> Target | None:
    """Of the newest compile report in the artifacts below `folders`; None without one.

    A report that cannot be read is passed over, as if it were not there.
    """
    found = [path for folder in folders for path in folder.glob(f"cs_*/{REPORT_JSON}")]
    for path in sorted(found, key=_age, reverse=True):
        with suppress(OSError, ValueError, KeyError, TypeError):
            report = json.loads(path.read_text(encoding="utf-8"))
            rate = float(report["overall"]["samples_per_s"])
            if rate > 0:
                return Target(rate, f"estimated for the wafer in {shown(path)}")
    return None


def shown(path: Path) -> str:
    """A path as a reader of the report knows it: from the current directory on where it lies below that."""
    here = Path.cwd()
    full = path.absolute()
    return str(full.relative_to(here)) if full.is_relative_to(here) else str(path)


def _age(path: Path) -> float:
    with suppress(OSError):
        return path.stat().st_mtime
    return 0.0
