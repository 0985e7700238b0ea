"""The Input Function Report of a run, in its log."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Sequence
from typing import Protocol

from cs_toolkit.errors import EXIT_BUG, exit_code_of
from cs_toolkit.random_numbers import random_numbers_kept
from input_rules.finding import Finding
from input_rules.report import lines

log = logging.getLogger("cs_runtime")


class Inspected(Protocol):
    """What is known of an input function that was not run."""

    @property
    def findings(self) -> Sequence[Finding]:
        """What it could do better."""
        ...

    @property
    def notes(self) -> Sequence[str]:
        """What a reader must know beside, one sentence each."""
        ...


def log_report(inspect: Callable[[], Inspected]) -> None:
    """Logs what an input function could do better. A report never ends a run, not even by a bug of ours.

    An input function that raises does so again when the run reads its input, which tells the user. One that
    draws random numbers while it is called gives the run the batches that it would give without a report.

    Args:
        inspect: Calls the function, as often as it has to.
    """
    try:
        with random_numbers_kept():
            inspected = inspect()
    except Exception as error:
        level = logging.WARNING if exit_code_of(error) == EXIT_BUG else logging.DEBUG
        log.log(level, "no Input Function Report: %s: %s", type(error).__name__, error)
        return
    for level, line in lines(inspected.findings, ["python", *sys.orig_argv[1:]], inspected.notes):
        log.log(level, "%s", line)
