"""Options that programs pass for the original's cluster or for earlier releases, without effect here."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from functools import wraps
from typing import Any

from torch.utils.data import DataLoader

from cstorch.program import Program

log = logging.getLogger("cstorch")

_NUM_WORKERS = 4  # position of `num_workers` among the arguments after the dataset


def log_unused(caller: str, given: Mapping[str, Any], plain: Mapping[str, Any] | None = None) -> None:
    """Log settings without effect that differ from their defaults, once for each program.

    Args:
        caller: The function that the program has called.
        given: Values by name.
        plain: Defaults by name; None, False and empty values count as defaults too.
    """
    names = [name for name, value in given.items() if value and value != (plain or {}).get(name)]
    if names:
        message = "%s: %s of the original's cluster, without effect here"
        Program.current().log_once(log, logging.WARNING, message, caller, ", ".join(names))


def accept_prefetch_factor() -> None:
    """Make torch's `DataLoader` ignore `prefetch_factor` if it has no worker processes."""
    # Releases up to 1.13 have 2 as its default for every loader. Later ones raise ValueError for any number,
    # so a program whose configuration has both settings could not set `num_workers` to 0.
    make: Any = DataLoader.__init__

    @wraps(make)
    def init(loader: Any, dataset: Any, *args: Any, **kwargs: Any) -> None:
        workers = args[_NUM_WORKERS] if len(args) > _NUM_WORKERS else kwargs.get("num_workers", 0)
        if not workers and kwargs.get("prefetch_factor") is not None:
            kwargs["prefetch_factor"] = None
        make(loader, dataset, *args, **kwargs)

    DataLoader.__init__ = init
