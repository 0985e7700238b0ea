"""Whether mends of what tasks and worker processes read keep every record; what is not proved is not mended.

A record of an iterable dataset has no index. To leave each to one of several tasks, or workers, all of them
must come across the records in one order: that is proved by reading whole epochs, of inputs that are built
and read while the random numbers of their processes stand elsewhere.
"""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from torch.utils.data import DataLoader, IterDataPipe

from input_analyzer.analysis import Finding
from input_analyzer.applying import WORKER_COUNTS, left_alone
from input_analyzer.handover import InputProgram, Shard
from input_analyzer.torch import global_random, handles, records, worker_probe
from input_analyzer.torch.concurrent_reads import against_more_workers
from input_analyzer.torch.layers import epoch_of
from input_analyzer.torch.loader import batched_by_dataset, parts_of
from input_analyzer.torch.mend import SEED, is_plain, mend
from input_analyzer.torch.reader_threads import noticing_helpers
from input_analyzer.torch.task_probe import Task, records_differ, task_of, tasks_differ

LONGEST_S = 4.0
"""An epoch that takes longer to read is not proved to have one order."""

_AGAIN = 3.0  # times as long the second reading may take, on a busy machine
_QUICK_S = 2.0
_SEEDS = (20190731, 20240117)
SHARDING, SPLITTING = "shard-missing", "loader-records-repeated"
OVERLAP = "loader-parts-overlap"
RESTARTED = "loader-workers-restarted"


@dataclass(frozen=True)
class Tasks:
    """Two tasks of a job.

    Attributes:
        first: What the first of them reads.
        second: What the other one reads.
        differ: Whether that are different records; None where it cannot be told.
        against: Why the tasks cannot share out indices for certain; None where both have the same records at
            equal indices, and the same indices, however the random numbers of their processes stand.
        held: What the first one's dataset has open before it is read, for others to read; None: nothing.
        by_chance: Random numbers decide which records they read, as far as can be seen, and no index does.
    """

    first: Task
    second: Task
    differ: bool | None
    against: str | None
    held: str | None
    by_chance: bool = False


def two_tasks(program: InputProgram) -> tuple[Tasks, Any]:
    """Compares two tasks; the loader of the first one is returned too.

    Their inputs are built, and their orders drawn, with other random numbers of the process. Where nobody can
    tell then that they are the same, or where that may be for these numbers, the second one is built again
    with those of the first: in a training each of two tasks would read all of the records.
    """
    began = time.monotonic()
    second = _task(program, 1, _SEEDS[1])[0]
    quick = time.monotonic() - began < _QUICK_S
    first, loader, held = _task(program, 0, _SEEDS[0])
    differ = tasks_differ(first, second)
    against = _against_indices(first, second, differ)
    if differ is False and first.stream is not None:
        with program.role(Shard(2, 0)):
            by_chance = records.chosen_by_chance(loader.dataset, batched_by_dataset(loader))
        if by_chance:  # what nobody seeds is drawn apart
            same = records.begin_alike(first.natural, second.natural)
            return Tasks(first, second, False if same else None, against, held, by_chance), loader
    shared_out = differ and first.stream is None and not records_differ(first, second)
    # What nobody seeds is no fault if it is drawn apart; what changes by itself nothing makes alike.
    changes = bool(first.drawn) or (first.stream is not None and not records.begin_alike(*first.stream))
    if differ is False or shared_out or changes or not quick:
        return Tasks(first, second, differ, against, held, bool(first.drawn)), loader
    alike = _task(program, 1, _SEEDS[0])[0]
    return Tasks(first, alike, tasks_differ(first, alike), against, held), loader


def shared_order(task: Task) -> str:
    """Digests of the records that a task reads first, for another process to compare; see `order_elsewhere`.

    Empty where they change from one reading to the next, which says nothing about another process.
    """
    once, again = task.data if task.stream is None else task.stream
    return " ".join(once) if records.begin_alike(once, again) else ""


def order_elsewhere(program: InputProgram) -> str:
    """What `shared_order` says of the first of two tasks, as this process makes it."""
    return shared_order(_task(program, 0, _SEEDS[0])[0])


def _against_indices(first: Task, second: Task, differ: bool | None) -> str | None:
    """See `Tasks.against`; the two were built with other random numbers of their processes."""
    if first.drawn or second.drawn:
        return "its records do not depend on the index, but on random numbers"
    if records_differ(first, second):
        return _OTHER_RECORDS
    return None if differ is False else _OTHER_INDICES


def draws_some(loader: Any, tasks: Tasks) -> bool:
    """Whether random numbers choose which indices an order has, and tasks share them only for these."""
    chosen = tasks.differ is False and tasks.against == _OTHER_INDICES
    return chosen and not is_plain(parts_of(loader).order)


_OTHER_RECORDS = "equal indices are other records in another process"
_OTHER_INDICES = "its indices are other ones in another process"


def _task(program: InputProgram, index: int, seed: int) -> tuple[Task, Any, str | None]:
    """What a task reads, its loader, and what that has open when it is new."""
    shard = Shard(2, index)
    with program.role(shard):
        before = handles.open_now()
        with global_random.anew(seed):
            loader = program.build(shard)
            held = handles.held_by(loader.dataset) or handles.opened_since(before) or handles.kept()
            return task_of(loader), loader, held


@dataclass(frozen=True)
class _Order:
    """The records of an epoch in their order.

    Attributes:
        digest: A hash of all of them.
        whole: Whether the epoch was read to its end.
        helped: Threads or processes were started meanwhile, or when the dataset was made: which of them draws
            random numbers first is another thing every time.
    """

    digest: str
    whole: bool
    helped: bool


def against(
    program: InputProgram, loader: Any, tasks: Tasks, findings: Collection[Finding]
) -> dict[str, str]:
    """Why findings cannot be mended for certain, by their identifiers.

    Args:
        program: The input.
        loader: Of the first of two tasks.
        tasks: What was found of the two.
        findings: Of all rules.
    """
    asked = {finding.id for finding in findings}
    reasons = against_more_workers(program, loader, tasks.held, bool(tasks.first.drawn), findings)
    reasons |= _against_sharing(program, loader, tasks, asked)
    if SPLITTING in reasons:  # then the number of workers matters
        several = {one.id for one in findings if one.id in WORKER_COUNTS and (one.value or 0) > 1}
        reasons |= dict.fromkeys(several, reasons[SPLITTING])
    if RESTARTED in asked and parts_of(loader).iterable and not worker_probe.reads_again(loader):
        reasons[RESTARTED] = "a worker process that stays has fewer records, or none, in its next epoch"
    staying = asked & {RESTARTED, "loader-workers-missing"}
    if staying and (kept := epoch_of(loader.dataset)) is not None:
        why = f"workers that stay keep their copy of the dataset, and with it {kept} of the first epoch"
        reasons |= dict.fromkeys(staying - set(reasons), why)
    return reasons


def _against_sharing(
    program: InputProgram, loader: Any, tasks: Tasks, asked: Collection[str]
) -> dict[str, str]:
    """Why records cannot be left to one of several tasks, or workers, for certain.

    Args:
        program: The input.
        loader: Of the first of two tasks.
        tasks: What was found of the two.
        asked: Identifiers of findings.

    Returns:
        By the identifier of a finding; without those that can be mended.
    """
    wanted = [name for name in (SHARDING, SPLITTING) if name in asked]
    if not wanted:
        return {}
    if type(loader) is not DataLoader:
        return dict.fromkeys(wanted, f"{type(loader).__name__} is a class of its own")
    parts = parts_of(loader)
    if parts.iterable:
        if tasks.by_chance:
            return dict.fromkeys(wanted, "random numbers choose its records, as far as can be seen")
        if OVERLAP in asked:
            return dict.fromkeys(wanted, "its workers do not read each record once")
        if isinstance(loader.dataset, IterDataPipe):
            return dict.fromkeys(wanted, "torch seeds and shards data pipes itself")
        return _against_streams(program, wanted)
    if not is_plain(parts.order) or (loader.batch_size is None and parts.batches):
        return {SHARDING: f"nobody knows what {type(parts.order).__name__} needs to give a task its part"}
    return {} if tasks.against is None else {SHARDING: tasks.against}


def _against_streams(program: InputProgram, wanted: Sequence[str]) -> dict[str, str]:
    ours = _orders_of(program, 0, wanted, LONGEST_S)
    if not ours:
        return dict.fromkeys(wanted, "it could not be read for a comparison")
    if not all(order.whole for order in ours):
        return dict.fromkeys(
            wanted,
            "that all come across the records in one order is proved with whole epochs, and one takes more "
            f"than {LONGEST_S:g} s here",
        )
    if any(order.helped for order in ours):
        return dict.fromkeys(
            wanted,
            "threads or processes that it starts read for it, and may take turns otherwise another time",
        )
    reasons = {}
    if SPLITTING in wanted and len(set(ours)) > 1:
        reasons = dict.fromkeys(wanted, "the workers come across the records in different orders")
    elif SHARDING in wanted and ours != _orders_of(program, 1, wanted, _AGAIN * LONGEST_S):
        reasons[SHARDING] = "the tasks come across the records in different orders"
    return reasons


def _orders_of(program: InputProgram, task: int, wanted: Sequence[str], seconds: float) -> tuple[_Order, ...]:
    """What each worker process of a mended loader comes across, or the process itself without any."""
    shard = Shard(2, task)
    with program.role(shard):
        with global_random.anew(_SEEDS[task]), noticing_helpers() as helpers:
            loader = program.build(shard)
        orders = _orders(mend(loader, dict.fromkeys(wanted), 2, task).loader, seconds)
        return tuple(replace(order, helped=order.helped or helpers.started) for order in orders)


def _orders(mended: Any, seconds: float) -> tuple[_Order, ...]:
    count = mended.num_workers
    if count:
        beside = max(1.0, count / len(os.sched_getaffinity(0)))
        return worker_probe.in_workers(mended, count, partial(_read_order, seconds=seconds * beside), SEED)
    try:
        return (_read_order(mended.dataset, seconds),)
    except Exception:
        return ()  # what the dataset raises is shown where it is read in earnest


def _read_order(dataset: Any, seconds: float) -> _Order:
    with noticing_helpers() as helpers:
        part = records.read_part(dataset.whole(), seconds)
    content = hashlib.blake2b("".join(part.digests).encode()).hexdigest()
    return _Order(content, part.whole, helpers.started)


def parts_of_workers(loader: Any, findings: Collection[Finding]) -> tuple[int | None, dict[str, str]]:
    """What is known of the number of workers that findings recommend for an iterable dataset.

    Returns:
        How many workers have records of their own, where these are fewer; and why the number cannot be
        mended, by the identifier of the finding.
    """
    finding = next((one for one in findings if one.id in WORKER_COUNTS and (one.value or 0) > 1), None)
    divided = any(one.id == SPLITTING for one in findings)
    if finding is None or divided or not parts_of(loader).iterable:
        return None, {}
    count = finding.value or 0
    parts = worker_probe.parts_among_workers(loader, count)
    if parts == count:
        enough = worker_probe.workers_with_batches(loader)
        fewer = max(enough or count, loader.num_workers)
        return (fewer if fewer < count else None), {}
    if parts == 0:  # as many as there are may be right, fewer than that nobody has tried
        parts = max(1, loader.num_workers) if loader.num_workers < count else None
    if parts is not None:
        return parts, {}
    return None, {finding.id: f"nobody can tell that {count} workers would read every record once"}


def shuffles(loader: Any, tasks: Tasks, findings: Collection[Finding]) -> bool:
    """Whether what a finding says of sharing records has to speak of random numbers."""
    if not any(one.id in (SHARDING, SPLITTING) for one in findings):
        return False
    parts = parts_of(loader)
    if parts.iterable:
        return not tasks.by_chance and records.hangs_on_chance(loader.dataset)
    return tasks.against in (_OTHER_RECORDS, _OTHER_INDICES) and is_plain(parts.order)


_SEED_NEEDED = "what it shuffles with needs a seed that all of them share, else records are lost and repeated"


def marked(
    findings: Collection[Finding], reasons: Mapping[str, str], by_chance: bool = False
) -> tuple[Finding, ...]:
    """Findings, those that cannot be mended for certain with the reason.

    Args:
        findings: Of all rules.
        reasons: By the identifier of a finding.
        by_chance: The records of a dataset without indices change with the random numbers of the process.
    """
    if by_chance:
        findings = [
            replace(one, recommended=f"{one.recommended}; {_SEED_NEEDED}")
            if one.id in (SHARDING, SPLITTING)
            else one
            for one in findings
        ]
    return tuple(left_alone(one, reasons[one.id]) if one.id in reasons else one for one in findings)
