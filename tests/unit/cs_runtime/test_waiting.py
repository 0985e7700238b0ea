from __future__ import annotations

import logging
import time

import pytest

from cs_runtime import waiting
from cs_runtime.waiting import WaitLog, announced


@pytest.fixture(autouse=True)
def short_interval(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(waiting, "LINE_EVERY_S", 0.2)
    caplog.set_level(logging.INFO, "cs_runtime")


def test_a_short_wait_is_no_line_and_a_long_one_a_line_each_interval(
    caplog: pytest.LogCaptureFixture,
) -> None:
    log = WaitLog()
    log("short")
    assert not caplog.records
    time.sleep(0.25)
    log("long")
    log("long")
    assert [r.getMessage() for r in caplog.records] == ["long"]
    time.sleep(0.25)
    log.reset()
    log("another wait")
    assert len(caplog.records) == 1


def test_the_first_line_at_once(caplog: pytest.LogCaptureFixture) -> None:
    log = WaitLog(at_once=True)
    log("queued")
    log("queued")
    assert [r.getMessage() for r in caplog.records] == ["queued"]


def test_a_call_that_blocks_is_announced_until_it_ends(caplog: pytest.LogCaptureFixture) -> None:
    def block() -> None:
        with announced("program the fabric"):
            time.sleep(0.5)
            raise ValueError("ended")

    with pytest.raises(ValueError, match="ended"):
        block()
    said = [r.getMessage() for r in caplog.records]
    assert len(said) >= 2
    assert said[0].startswith("waiting for the CS system to program the fabric, for ")
    time.sleep(0.3)
    assert len(caplog.records) == len(said)
