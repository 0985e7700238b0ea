"""Readable log lines for programs that have set up no logging of their own."""

from __future__ import annotations

import logging
import os
import sys
import tempfile
from importlib import import_module

# The toolkit's own loggers say at INFO what a user waits for; other libraries stay at WARNING.
PACKAGES = ("cgc", "cs_system", "estimator", "runtime", "streaming")
FORMAT = "%(asctime)s %(levelname)s: %(message)s"

# TensorFlow 2.21 writes these at every start, whatever TF_CPP_MIN_LOG_LEVEL says.
_START_UP_LINES = (b"All log messages before absl::InitializeLog()", b"oneDNN custom operations are on")


def import_tensorflow() -> None:
    """Imports TensorFlow without the lines on how it was built; everything else that it writes appears.

    For the first import in a process; C++ writes past Python to the descriptor of stderr.
    """
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "1")
    sys.stderr.flush()
    stderr = os.dup(2)
    with tempfile.TemporaryFile() as written:
        os.dup2(written.fileno(), 2)
        try:
            import_module("tensorflow")
        finally:
            os.dup2(stderr, 2)
            os.close(stderr)
            written.seek(0)
            kept = [line for line in written if not any(known in line for known in _START_UP_LINES)]
            os.write(2, b"".join(kept))


def set_up() -> None:
    """Writes the toolkit's lines to stderr, unless the program has configured logging already."""
    if logging.getLogger().handlers:
        return
    logging.basicConfig(level=logging.WARNING, format=FORMAT, datefmt="%H:%M:%S")
    for name in PACKAGES:
        logger = logging.getLogger(name)
        if logger.level == logging.NOTSET:
            logger.setLevel(logging.INFO)
