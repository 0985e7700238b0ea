"""What a program sets of the original's cluster and has no effect here is named, once."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from functools import cache
from typing import Any

log = logging.getLogger("cstorch")


def announce_unused(caller: str, given: Mapping[str, Any], plain: Mapping[str, Any] | None = None) -> None:
    """Names settings without effect that differ from their defaults.

    Args:
        caller: What the program has called.
        given: Values by name.
        plain: Defaults by name; None, False and what is empty are no settings, either.
    """
    names = [name for name, value in given.items() if value and value != (plain or {}).get(name)]
    if names:
        _announce(caller, ", ".join(names))


@cache
def _announce(caller: str, names: str) -> None:
    log.warning("%s: %s of the original's cluster, without effect here", caller, names)
