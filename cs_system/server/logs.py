"""Log lines of the server: local time, level, job, text."""

from __future__ import annotations

import logging
import sys


class _Formatter(logging.Formatter):
    """`2026-01-31 12:00:00.123 INFO    job-17  text`; `-` stands for lines that belong to no job."""

    default_msec_format = "%s.%03d"

    def format(self, record: logging.LogRecord) -> str:
        if not hasattr(record, "job"):
            record.job = "-"
        return super().format(record)


def set_up_logs(level: int = logging.INFO) -> None:
    """Sends the lines of this toolkit, and warnings of everything else, to stderr."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_Formatter("%(asctime)s %(levelname)-7s %(job)s  %(message)s"))
    logging.basicConfig(level=logging.WARNING, handlers=[handler], force=True)
    for name in ("cs_system", "cs_stream"):
        logging.getLogger(name).setLevel(level)
