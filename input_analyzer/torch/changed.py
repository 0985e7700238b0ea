"""A DataLoader made again with what findings recommend, to compare its rate with that of the loader."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch.utils.data import DataLoader

from input_analyzer.compared import WORKER_COUNTS
from input_rules.torch.loader import parts_of


def changed(loader: Any, findings: Mapping[str, int | None]) -> Any:
    """A loader with other worker processes.

    Args:
        loader: Made by the user's function; it is not to be read any more.
        findings: Identifiers of findings, with the number that each recommends.

    Returns:
        None where nothing changes, or the loader is of a class of the user's own.
    """
    arguments = {} if type(loader) is not DataLoader else _recommended(loader, findings)
    return DataLoader(**_arguments_of(loader) | arguments) if arguments else None


def _recommended(loader: Any, findings: Mapping[str, int | None]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    count = next((findings[name] for name in WORKER_COUNTS if findings.get(name)), None)
    if count is not None and count != loader.num_workers:
        found["num_workers"] = count
        if not loader.num_workers:
            found |= {"persistent_workers": True, "prefetch_factor": None}
    if "loader-workers-restarted" in findings and loader.num_workers and not loader.persistent_workers:
        found["persistent_workers"] = True
    return found


def _arguments_of(loader: Any) -> dict[str, Any]:
    """What makes a DataLoader like this one."""
    names = (
        *("dataset", "num_workers", "collate_fn", "pin_memory", "timeout", "worker_init_fn", "generator"),
        *("multiprocessing_context", "prefetch_factor", "persistent_workers", "in_order"),
    )
    found = {name: getattr(loader, name) for name in names}
    parts = parts_of(loader)
    if loader.batch_size is None and parts.batches:
        return {**found, "batch_sampler": loader.batch_sampler}
    found |= {"batch_size": loader.batch_size, "drop_last": loader.drop_last}
    return found if parts.iterable else {**found, "sampler": loader.sampler}
