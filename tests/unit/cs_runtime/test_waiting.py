from __future__ import annotations

import logging
import threading

import pytest

from cs_runtime import waiting
from cs_runtime.waiting import FIRST_LINE_S, LINE_EVERY_S, WaitLog, announced


class Clock:
    """Goes on when it is told to."""

    def __init__(self) -> None:
        self.now_s = 100.0

    def monotonic(self) -> float:
        return self.now_s


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(waiting, "time", made)
    return made


@pytest.fixture(autouse=True)
def all_lines(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "cs_runtime")


def test_a_short_wait_is_no_line_and_a_long_one_a_line_each_interval(
    caplog: pytest.LogCaptureFixture, clock: Clock
) -> None:
    log = WaitLog()
    clock.now_s += FIRST_LINE_S - 1
    assert not log("short")
    assert not caplog.records
    clock.now_s += 1
    assert log("long")
    clock.now_s += LINE_EVERY_S - 1
    assert not log("long")
    assert [r.getMessage() for r in caplog.records] == ["long"]
    clock.now_s += LINE_EVERY_S
    log.reset()
    log("another wait")
    assert len(caplog.records) == 1


def test_the_first_line_at_once(caplog: pytest.LogCaptureFixture, clock: Clock) -> None:
    log = WaitLog(at_once=True)
    log("queued")
    log("queued")
    assert [r.getMessage() for r in caplog.records] == ["queued"]


def test_a_call_that_blocks_is_announced_until_it_ends(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(waiting, "LINE_EVERY_S", 0.05)
    two_lines = threading.Event()
    monkeypatch.setattr(caplog.handler, "emit", _then(caplog.handler.emit, caplog, two_lines))

    def block() -> None:
        with announced("program the fabric"):
            two_lines.wait()
            raise ValueError("ended")

    with pytest.raises(ValueError, match="ended"):
        block()
    said = [r.getMessage() for r in caplog.records]
    assert said[0].startswith("waiting for the CS system to program the fabric, for ")
    assert "wait-log" not in [thread.name for thread in threading.enumerate()]


def _then(emit: object, caplog: pytest.LogCaptureFixture, two_lines: threading.Event) -> object:
    def noted(record: logging.LogRecord) -> None:
        emit(record)  # type: ignore[operator]
        if len(caplog.records) >= 2:
            two_lines.set()

    return noted
