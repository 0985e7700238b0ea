"""Readable log lines for programs that have set up no logging of their own."""

from __future__ import annotations

import logging

# The toolkit's own loggers say at INFO what a user waits for; other libraries stay at WARNING.
PACKAGES = ("cgc", "cs_system", "estimator", "runtime", "streaming")
FORMAT = "%(asctime)s %(levelname)s: %(message)s"


def set_up() -> None:
    """Writes the toolkit's lines to stderr, unless the program has configured logging already."""
    if logging.getLogger().handlers:
        return
    logging.basicConfig(level=logging.WARNING, format=FORMAT, datefmt="%H:%M:%S")
    for name in PACKAGES:
        logger = logging.getLogger(name)
        if logger.level == logging.NOTSET:
            logger.setLevel(logging.INFO)
