"""Log lines as JSON objects, for programs that collect the logs of many machines."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping
from datetime import UTC, datetime

LOG_FORMAT_VARIABLE = "CS_LOG_FORMAT"
FORMATS = ("text", "json")

# Attributes of records, given as `extra`, that are keys of the line.
FIELDS = ("job", "task", "worker", "step")


class JsonFormatter(logging.Formatter):
    """Formats records as JSON objects, one a line: time (UTC), level, logger, message, and known fields.

    The fields are job, task, worker and step; `exception` is a traceback.

    Args:
        context: Returns fields of the current job, which lines about it or about no job get.
    """

    def __init__(self, context: Callable[[], Mapping[str, object]] = dict) -> None:
        super().__init__()
        self._context = context

    def format(self, record: logging.LogRecord) -> str:
        """Return the line."""
        time = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
        line: dict[str, object] = {
            "time": time.replace("+00:00", "Z"),
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
        }
        own, context = (
            {name: getattr(record, name) for name in FIELDS if hasattr(record, name)},
            self._context(),
        )
        # A line about another job, one in the queue, has nothing of the current one.
        line |= own if own.get("job", context.get("job")) != context.get("job") else {**context, **own}
        line["pid"] = record.process
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        # ASCII keeps lone surrogates of undecodable file names, and a line is never broken by U+2028.
        return json.dumps(line, default=str)
