"""The order of the input of a training run: its record in `model_dir`, and the check of a run that resumes.

Batch p of a run is batch `p // V` of shard `p % V` of the input, where V is the number of shards. It is fixed
when training starts, so the number of workers may change later where a worker can read any shard. The file
`input_order.jsonl` has a line for every checkpoint, from which the run that resumes there continues.
"""

from __future__ import annotations

import json
import logging
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from cs_runtime.errors import InputChangedError, InputOrderError, ModelDirError
from cs_runtime.input_source import Sharding
from cs_runtime.options import RunSettings
from cs_stream.order import (
    MAX_SHARDS,
    SCHEDULE_ENTRY_BYTES,
    InputPosition,
    even_cursors,
    pack_schedule,
    unpack_schedule,
)
from cs_toolkit.execution_options import AUTO
from cs_toolkit.files import parse_json, replace_file

log = logging.getLogger("cs_runtime")

FILE_NAME = "input_order.jsonl"
# A program may read its state after every step; of a longer file the newer half is kept.
_MAX_BYTES = 1 << 20

ORDER_FILE_NAME = "input_order.shards"
FIXED, FIRST_READY = "fixed", "first-ready"
_ENTRY_BYTES = SCHEDULE_ENTRY_BYTES
_UNKNOWN = MAX_SHARDS  # no shard has this number
# The order to replay goes in one message, with room for the rest of it.
_MAX_ORDER_BYTES = 3 << 20


@dataclass(frozen=True)
class InputRecord:
    """The input of a run at a checkpoint.

    Attributes:
        step: Global step of the checkpoint.
        workers: Number of workers of the run.
        shards: Number of shards over which the order is defined.
        sharding: How the share of a worker is determined.
        position: Place in that order; it is ahead of the step after shards that have ended.
        digest: Order digest of the batches before (`cs_stream.order.OrderDigest`).
        digest_from: First step in the digest; above 0 if earlier ones have no record.
        cursors: With the order first-ready, the next batch of each shard; else empty.
    """

    step: int
    workers: int
    shards: int
    sharding: Sharding
    position: int
    digest: str = ""
    digest_from: int = 0
    cursors: tuple[int, ...] = ()

    def place(self, schedule: bytes = b"") -> InputPosition:
        """Return the place in the order, as the system gets it, with the order to replay from there on."""
        return InputPosition(self.shards, self.position, self.digest, self.cursors, schedule)

    def at(self, step: int, place: InputPosition) -> InputRecord:
        """Return the record of a later step of the same run."""
        return replace(self, step=step, position=place.position, digest=place.digest, cursors=place.cursors)


def read_record(model_dir: Path, step: int) -> InputRecord | None:
    """Return the newest record of a checkpoint at this global step, or None."""
    try:
        lines = (model_dir / FILE_NAME).read_text(encoding="utf-8").splitlines()
    except (OSError, ValueError):
        return None
    # A run that went back to an older checkpoint has added lines for the same steps again.
    return next((record for line in reversed(lines) if (record := _parse(line, step)) is not None), None)


def _parse(line: str, step: int) -> InputRecord | None:
    """Return the record of a line; None for another step, or for a line that is damaged or incomplete."""
    try:
        found: Any = parse_json(line)
        if found["step"] != step:
            return None
        names = InputRecord.__dataclass_fields__
        record = InputRecord(**{name: value for name, value in found.items() if name in names})
        return replace(record, cursors=tuple(map(int, record.cursors)))
    except (ValueError, KeyError, TypeError):
        return None


def append_record(model_dir: Path, record: InputRecord) -> None:
    """Add the record of a checkpoint; call it before the checkpoint is written, so that each has one.

    Raises:
        ModelDirError: The directory is not writable or full.
    """
    try:
        model_dir.mkdir(parents=True, exist_ok=True)
        with (model_dir / FILE_NAME).open("a", encoding="utf-8") as file:
            file.write(json.dumps(asdict(record)) + "\n")
            size = file.tell()
        if size > _MAX_BYTES:
            text = (model_dir / FILE_NAME).read_text(encoding="utf-8")
            replace_file(model_dir / FILE_NAME, text[-_MAX_BYTES // 2 :].partition("\n")[2])
    except OSError as error:
        raise ModelDirError(model_dir, error) from error


def start_record(settings: RunSettings, first_step: int, workers: int, sharding: Sharding) -> InputRecord:
    """Return the record with which a training run starts or resumes.

    Raises:
        InputChangedError: The run that wrote the checkpoint had another number of workers, and the program
            determines their shares.
        InputOrderError: The order first-ready has fewer shards than workers, or the file of an order cannot
            be replayed.
    """
    found = _start_record(settings, first_step, workers, sharding)
    wanted = settings.options.input_order
    if wanted == FIXED:
        if not found.cursors:
            return found
        log.info("the run began with the order first-ready, which it keeps")
    elif wanted != FIRST_READY:
        shards, _ = _read_order(Path(wanted))
        is_free = not first_step or (sharding == "global" and not found.cursors)
        if shards != found.shards and not is_free:
            raise InputOrderError(f"'{wanted}' has {shards} shards, expected {found.shards} as in this run")
        found = replace(found, shards=shards)
    elif not found.cursors and sharding == "global":
        found = replace(found, shards=max(workers, _wanted_shards(settings)))
    if workers > found.shards:
        raise InputOrderError(
            f"there are {workers} workers and {found.shards} shards; "
            "the order first-ready needs a shard for each worker: "
            f"use {found.shards} worker(s), or set input_shards when training starts"
        )
    return replace(found, cursors=found.cursors or even_cursors(found.shards, found.position))


def schedule_from(settings: RunSettings, record: InputRecord) -> bytes:
    """Return the order to replay after a record, as a schedule; empty unless `input_order` is a file."""
    wanted = settings.options.input_order
    if wanted in (FIXED, FIRST_READY):
        return b""
    _, schedule = _read_order(Path(wanted))
    return schedule[_ENTRY_BYTES * record.step :]


class OrderLog:
    """The file `input_order.shards`: the shard of every step in the order first-ready.

    The file has numbers of 16 bits, little-endian: the number of shards, then the shard of each step.

    Args:
        model_dir: Directory of the run.
        record: Record with which the run begins; entries of later steps are dropped.
        schedule: The order that the run replays from there on (`schedule_from`).

    Raises:
        ModelDirError: The directory is not writable or full.
    """

    def __init__(self, model_dir: Path, record: InputRecord, schedule: bytes = b"") -> None:
        self._schedule, self._step, self._added = schedule, record.step, 0
        self._path = model_dir / ORDER_FILE_NAME
        size = _ENTRY_BYTES * (1 + record.step)
        try:
            model_dir.mkdir(parents=True, exist_ok=True)
            known = self._path.read_bytes()[_ENTRY_BYTES:size] if self._path.exists() else b""
            unknown = pack_schedule([_UNKNOWN]) * ((size - _ENTRY_BYTES - len(known)) // _ENTRY_BYTES)
            self._path.write_bytes(pack_schedule([record.shards]) + known + unknown)
        except OSError as error:
            raise ModelDirError(model_dir, error) from error

    def add(self, shards: bytes) -> None:
        """Append the shards of the next steps; warn if they are not those of the schedule.

        Raises:
            ModelDirError: The directory is full.
        """
        try:
            with self._path.open("ab") as file:
                file.write(shards)
            expected = self._schedule[self._added : self._added + len(shards)]
            self._added += len(shards)
            if not shards.startswith(expected):
                self._schedule = b""
                log.warning(
                    "steps %d to %d do not have the order that is replayed: the input has fewer batches than "
                    "that of the run which has logged it; those that do not exist are left out",
                    self._step + (self._added - len(shards)) // _ENTRY_BYTES + 1,
                    self._step + self._added // _ENTRY_BYTES,
                )
        except OSError as error:
            raise ModelDirError(self._path.parent, error) from error


def _read_order(path: Path) -> tuple[int, bytes]:
    """Return the number of shards and the schedule in a file that `OrderLog` has written."""
    try:
        content = path.read_bytes()
    except OSError as error:
        raise InputOrderError(
            f"input_order is '{path}', expected {FIXED}, {FIRST_READY} or a file '{ORDER_FILE_NAME}' of an "
            f"earlier run ({error.strerror})"
        ) from error
    if len(content) > _MAX_ORDER_BYTES or len(content) % _ENTRY_BYTES or len(content) < _ENTRY_BYTES:
        raise InputOrderError(
            f"'{path}' has {len(content):,} bytes, expected an even number up to {_MAX_ORDER_BYTES:,}: "
            f"a file '{ORDER_FILE_NAME}' of an earlier run"
        )
    shards, *steps = unpack_schedule(content)
    if not shards or any(shard >= shards for shard in steps):
        raise InputOrderError(
            f"'{path}' does not name a shard below {shards} for every step; expected a file "
            f"'{ORDER_FILE_NAME}' of a run that had this order from its first step on"
        )
    return shards, content[_ENTRY_BYTES:]


def _start_record(settings: RunSettings, first_step: int, workers: int, sharding: Sharding) -> InputRecord:
    new = InputRecord(first_step, workers, _new_shards(settings, workers, sharding), sharding, first_step)
    if not first_step:
        return new
    new = replace(new, digest_from=first_step)
    if settings.options.program_skips_batches:
        log.warning(
            "resuming at global step %d with an input that the program positions: unless input_fn skips what "
            "earlier runs have read, the same records are used again (with input_position='toolkit' the "
            "toolkit skips them)",
            first_step,
        )
        return new
    before = read_record(settings.record_dir or settings.model_dir, first_step)
    if before is None:
        log.info(
            "no record of the input at global step %d in '%s': continuing as if %d worker(s) had read it",
            *(first_step, settings.model_dir, workers),
        )
        return new
    resumed = replace(before, workers=workers, sharding=sharding)
    if sharding == "global":
        return resumed if resumed.cursors else replace(resumed, shards=1)
    if sharding == "shards" or before.shards == workers:
        if before.workers != workers:
            log.info(
                "resuming with %d worker(s) instead of %d, in the same order over %d shards",
                *(workers, before.workers, before.shards),
            )
        if settings.options.input_shards not in (AUTO, before.shards):
            log.warning(
                "input_shards is %s, without effect: the run began with %d shards, which keep its order",
                *(settings.options.input_shards, before.shards),
            )
        return resumed
    if not settings.options.allow_input_change:
        raise InputChangedError(first_step, before.workers, workers)
    log.warning(
        "resuming at global step %d with %d worker(s) instead of %d, as allow_input_change permits: samples "
        "are repeated and lost, because the program determines what each worker reads",
        *(first_step, workers, before.workers),
    )
    return replace(resumed, shards=workers, position=first_step, cursors=())


def _new_shards(settings: RunSettings, workers: int, sharding: Sharding) -> int:
    """Return the number of shards of a run that starts."""
    wanted = _wanted_shards(settings)
    if sharding == "global":
        return 1
    if not wanted:
        return workers
    if sharding == "program":
        log.warning(
            "input_shards is %d, without effect: the input function does not ask for its share when it runs",
            wanted,
        )
        return workers
    return max(wanted, workers)


def _wanted_shards(settings: RunSettings) -> int:
    """Return the number of shards that the user wants; 0 for auto."""
    wanted = settings.options.input_shards
    return 0 if wanted == AUTO else wanted
