"""Files of a system that survive its restarts: the settings of its administrators, and the usage log."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import socket
import time
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from cs_system.status import EXECUTIONS, Admission
from cs_system.usage import UsageRecord, record_from_json
from cs_toolkit.files import parse_json, replace_file

log = logging.getLogger("cs_system.server")

_SETTINGS, _RUNNING = "settings.json", "running.json"
_CRASHED = "the system ended unexpectedly"


def default_state_directory(port: int) -> Path | None:
    """Return the directory of a system in the user's state directory; None for one on any free port."""
    # Such a system would find the state of another one, which happened to get the same port.
    if port == 0:
        return None
    base = os.environ.get("XDG_STATE_HOME", "")
    root = Path(base) if Path(base).is_absolute() else Path.home() / ".local" / "state"
    # Hosts may share the home directory.
    return root / "cs_system" / f"{socket.gethostname()}-{port}"


class StateDirectory:
    """Reads and writes the files. A disk that fails is logged, and stops no job.

    Args:
        path: The directory; None stores nothing.
    """

    def __init__(self, path: Path | None) -> None:
        self.path = path
        if path is not None:
            with self._logged_errors("created", path):
                path.mkdir(parents=True, exist_ok=True)
        self._recover()

    # Settings

    def read_admission(self) -> Admission:
        """Return the stored settings, or the default."""
        found = self._read(_SETTINGS)
        if found is None:
            return Admission()
        try:
            modes = tuple(mode for mode in EXECUTIONS if mode in found["modes"]) or EXECUTIONS
            return Admission(str(found["drained_by"]), float(found["drained_s"]), modes)
        except (LookupError, TypeError, ValueError, OverflowError):
            log.warning("%s is damaged and is ignored", self._file(_SETTINGS))
            return Admission()

    def write_admission(self, admission: Admission) -> None:
        """Store the settings."""
        self._write(_SETTINGS, asdict(admission))

    # The usage log

    def write_running(self, record: UsageRecord) -> None:
        """Store the record of the running reservation, for the log if the system is killed."""
        self._write(_RUNNING, record.to_json())

    def append(self, record: UsageRecord) -> None:
        """Append the record of an ended reservation to the log of its month, and sync it to the disk."""
        if self.path is None:
            return
        month = time.strftime("%Y-%m", time.gmtime(record.until))
        path = self.path / f"usage-{month}.jsonl"
        with self._logged_errors("written", path):
            line = json.dumps(record.to_json(), separators=(",", ":")).encode() + b"\n"
            descriptor = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
            try:
                size = os.fstat(descriptor).st_size
                # A full disk or a power cut may have torn the last line.
                torn = size > 0 and os.pread(descriptor, 1, size - 1) != b"\n"
                os.write(descriptor, b"\n" + line if torn else line)
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
            (self.path / _RUNNING).unlink(missing_ok=True)

    def read_records(self, since: float) -> Iterator[UsageRecord]:
        """Yield the records of reservations that ended at a time or later; damaged lines are skipped."""
        if self.path is None:
            return
        first = f"usage-{time.strftime('%Y-%m', time.gmtime(since))}.jsonl"
        for path in sorted(self.path.glob("usage-*.jsonl")):
            if path.name < first:
                continue
            damaged = 0
            with path.open("rb") as lines:
                for line in lines:
                    try:
                        record = record_from_json(parse_json(line))
                    except (LookupError, TypeError, ValueError):
                        damaged += 1
                        continue
                    if record.until >= since:
                        yield record
            if damaged:
                log.warning("%s: %d damaged line(s) skipped", path, damaged)

    def _recover(self) -> None:
        """Log the reservation that was running when the system was killed."""
        found = self._read(_RUNNING)
        if found is None:
            return
        try:
            record = replace(record_from_json(found), end=_CRASHED)
        except (LookupError, TypeError, ValueError):
            log.warning("%s is damaged and is ignored", self._file(_RUNNING))
            return
        # The system may have been killed between the line and the end of this file.
        if not any((r.job, r.since) == (record.job, record.since) for r in self.read_records(record.until)):
            self.append(record)

    def _file(self, name: str) -> Path:
        assert self.path is not None
        return self.path / name

    def _read(self, name: str) -> dict[str, Any] | None:
        if self.path is None:
            return None
        try:
            found = parse_json(self._file(name).read_bytes())
        except FileNotFoundError:
            return None
        except (OSError, ValueError) as error:
            log.warning("%s cannot be read and is ignored: %s", self._file(name), error)
            return None
        return found if isinstance(found, dict) else {}

    def _write(self, name: str, content: dict[str, Any]) -> None:
        if self.path is not None:
            with self._logged_errors("written", self._file(name)):
                replace_file(self._file(name), json.dumps(content) + "\n")

    @contextlib.contextmanager
    def _logged_errors(self, verb: str, path: Path) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            log.error("%s cannot be %s: %s", path, verb, error.strerror or error)
