"""Lines of a log that others cause."""

import logging

import pytest

from cs_toolkit.limited_log import LimitedLog


def test_lines_in_between_are_counted(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    now_s = 100.0
    monkeypatch.setattr("time.monotonic", lambda: now_s)
    log = LimitedLog(logging.getLogger("test"), every_s=10.0)
    for index in range(1000):
        log.warning(f"dropping {index}")
    now_s = 109.9
    log.warning("dropping another")
    now_s = 110.0
    log.warning("dropping one more")
    assert caplog.messages == ["dropping 0", "dropping one more (1000 more like this before)"]
