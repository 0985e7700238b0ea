"""Compare the rates of a torch DataLoader with and without what findings recommend.

Both loaders are made once and read as a worker reads them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from types import MappingProxyType
from typing import Any

from torch.utils.data import DataLoader

from input_analyzer.errors import InputEndedError
from input_analyzer.gains import WORKER_COUNTS, Ratio, measure_ratio
from input_rules.input_export import InputProgram, Shard
from input_rules.torch.loader import loader_parts


def compare(
    program: InputProgram,
    findings: Mapping[str, int | None],
    seconds: float,
    say: Callable[[], None],
    files: Mapping[str, str] = MappingProxyType({}),
) -> Ratio | None:
    """Measure the ratio of the rates with and without some changes, and its 95 % interval.

    Args:
        program: The input.
        findings: Identifiers of findings, with the numbers that they recommend.
        seconds: Time to take.
        say: Called now and then.
        files: Changed sources of the program by path, for findings that change these.

    Returns:
        None if nothing changes, or batches are too slow for the time.
    """
    with program.role(Shard(1, 0)):
        plain, other = (program.build(Shard(1, 0)) for _ in range(2))
        other = apply_findings(other, findings)
        if other is None:
            return None
        before, after = (partial(next, _repeat_epochs(loader, say)) for loader in (plain, other))
        return measure_ratio(before, after, seconds, say)


def choose_form(program: InputProgram, forms: Mapping[str, Mapping[str, str]]) -> str | None:
    """Return the first form of a change of the source with which the input delivers the same batches."""
    return None


def _repeat_epochs(loader: Any, say: Callable[[], None]) -> Iterator[Any]:
    """Yield batches epoch after epoch."""
    while True:
        made = 0
        for batch in loader:
            made += 1
            say()
            yield batch
        if not made:
            raise InputEndedError(0, 0)


def apply_findings(loader: Any, findings: Mapping[str, int | None]) -> Any:
    """Return a loader with other worker processes.

    Args:
        loader: Made by the user's function, and not used any more.
        findings: Identifiers of findings, with the numbers that they recommend.

    Returns:
        None if nothing changes, or the loader has a class of the user's.
    """
    if type(loader) is not DataLoader:
        return None
    arguments: dict[str, Any] = {}
    count = next((findings[name] for name in WORKER_COUNTS if findings.get(name)), None)
    if count is not None and count != loader.num_workers:
        arguments["num_workers"] = count
        if not loader.num_workers:
            arguments |= {"persistent_workers": True, "prefetch_factor": None}
    if "loader-workers-restarted" in findings and loader.num_workers and not loader.persistent_workers:
        arguments["persistent_workers"] = True
    if not arguments:
        return None
    names = (
        *("dataset", "num_workers", "collate_fn", "pin_memory", "timeout", "worker_init_fn", "generator"),
        *("multiprocessing_context", "prefetch_factor", "persistent_workers", "in_order"),
    )
    own = {name: getattr(loader, name) for name in names}
    parts = loader_parts(loader)
    if loader.batch_size is None and parts.batches:
        own["batch_sampler"] = loader.batch_sampler
    else:
        own |= {"batch_size": loader.batch_size, "drop_last": loader.drop_last}
        if not parts.iterable:
            own["sampler"] = loader.sampler
    return DataLoader(**own | arguments)
