"""Logging of programs that have, or have not, set it up themselves."""

from __future__ import annotations

import logging

from cs_runtime.logs import PACKAGES, set_up


def test_logging_of_the_program_is_left_alone() -> None:
    root = logging.getLogger()
    levels = {name: logging.getLogger(name).level for name in ("estimator", *PACKAGES)}
    handlers = list(root.handlers)
    assert handlers, "pytest has handlers of its own"
    set_up("estimator", "tensorflow")
    assert root.handlers == handlers
    assert {name: logging.getLogger(name).level for name in ("estimator", *PACKAGES)} == levels
