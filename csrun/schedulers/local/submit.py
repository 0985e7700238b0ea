"""There is no queue on this machine: a job runs at once, or not."""

from __future__ import annotations

from typing import NoReturn

from cs_toolkit.errors import UsageError


def refuse() -> NoReturn:
    """Says so.

    Raises:
        UsageError: always.
    """
    raise UsageError(
        "--submit with --launcher=local: got both, expected one: this machine has no queue; leave --submit "
        "out, or choose a launcher that has one"
    )
