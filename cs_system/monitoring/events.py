"""The last lines of the system's log, for its status."""

from __future__ import annotations

import logging
from collections import deque

from cs_system.logs import LOGGERS
from cs_system.status import Event

_KEPT = 50
_CHARS = 500


class EventLog(logging.Handler):
    """Keeps the last lines that the system has logged; `with` attaches it to the loggers of the system."""

    def __init__(self) -> None:
        super().__init__(logging.INFO)
        self._events: deque[Event] = deque(maxlen=_KEPT)

    def emit(self, record: logging.LogRecord) -> None:
        """Keep the first line of a record."""
        text = record.getMessage().partition("\n")[0]
        job = str(getattr(record, "job", ""))
        self._events.append(Event(record.created, record.levelname, "" if job == "-" else job, text[:_CHARS]))

    def last(self, count: int) -> tuple[Event, ...]:
        """Return the last events, the newest last."""
        return tuple(list(self._events)[-count:])

    def __enter__(self) -> EventLog:
        for name in LOGGERS:
            logging.getLogger(name).addHandler(self)
        return self

    def __exit__(self, *_: object) -> None:
        for name in LOGGERS:
            logging.getLogger(name).removeHandler(self)
