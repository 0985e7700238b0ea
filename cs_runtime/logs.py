"""Readable log lines for programs that have set up no logging of their own."""

from __future__ import annotations

import logging

# The toolkit's own loggers say at INFO what a user waits for; other libraries stay at WARNING.
PACKAGES = ("cgc", "cs_system", "cs_runtime", "cs_stream")
FORMAT = "%(asctime)s %(levelname)s: %(message)s"


def set_up(front_end: str) -> None:
    """Write the toolkit's lines to stderr as long as the program has not configured logging.

    Args:
        front_end: The package of the front end.
    """
    if logging.getLogger().handlers:
        return
    # The handler of last resort, and none of the root logger: `basicConfig` does nothing where that has one,
    # and programs call it after this, where they know which task they are.
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter(FORMAT, datefmt="%H:%M:%S"))
    logging.lastResort = handler
    for name in (*PACKAGES, front_end):
        logger = logging.getLogger(name)
        if logger.level == logging.NOTSET:
            logger.setLevel(logging.INFO)
