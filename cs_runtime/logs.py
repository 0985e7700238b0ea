"""Readable log lines for programs that have set up no logging of their own."""

from __future__ import annotations

import logging
import sys

# The toolkit's own loggers say at INFO what a user waits for; other libraries stay at WARNING.
PACKAGES = ("cgc", "cs_system", "cs_runtime", "cs_stream")
FORMAT = "%(asctime)s %(levelname)s: %(message)s"


def set_up(front_end: str, framework: str) -> None:
    """Writes the toolkit's lines to stderr, unless the program has configured logging already.

    Args:
        front_end: The package of the front end.
        framework: The framework's logger, whose own lines on the terminal would be there twice.
    """
    if logging.getLogger().handlers:
        return
    logging.basicConfig(level=logging.WARNING, format=FORMAT, datefmt="%H:%M:%S")
    _silence_own_stream(logging.getLogger(framework))
    for name in (*PACKAGES, front_end):
        logger = logging.getLogger(name)
        if logger.level == logging.NOTSET:
            logger.setLevel(logging.INFO)


def _silence_own_stream(logger: logging.Logger) -> None:
    """Takes the handler for the terminal from a logger; each line would be there twice.

    TensorFlow, for one, adds it when it is used before any logging has been configured. Files keep theirs.
    """
    for handler in tuple(logger.handlers):
        if isinstance(handler, logging.StreamHandler) and handler.stream in (sys.stderr, sys.stdout):
            logger.removeHandler(handler)
