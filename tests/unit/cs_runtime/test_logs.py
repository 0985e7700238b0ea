"""Logging of programs that have, or have not, set it up themselves."""

from __future__ import annotations

import logging

import pytest

from cs_runtime.logs import PACKAGES, set_up


def test_logging_of_the_program_is_left_alone() -> None:
    root = logging.getLogger()
    levels = {name: logging.getLogger(name).level for name in ("estimator", *PACKAGES)}
    handlers = list(root.handlers)
    assert handlers, "pytest has handlers of its own"
    set_up("estimator")
    assert root.handlers == handlers
    assert {name: logging.getLogger(name).level for name in ("estimator", *PACKAGES)} == levels


def test_a_program_may_configure_logging_later(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """As programs do that need to know which task they are; from there on the lines are in their format."""
    root, log = logging.getLogger(), logging.getLogger("cs_runtime")
    monkeypatch.setattr(root, "handlers", [])
    monkeypatch.setattr(logging, "lastResort", None)
    monkeypatch.setattr(log, "level", log.level)
    set_up("estimator")
    log.info("before")
    logging.basicConfig(format="theirs: %(message)s")
    log.info("afterwards")
    before, afterwards = capsys.readouterr().err.splitlines()
    assert before.endswith("INFO: before")
    assert afterwards == "theirs: afterwards"
