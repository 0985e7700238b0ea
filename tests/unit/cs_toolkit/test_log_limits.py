from __future__ import annotations

import logging
import threading

import pytest

from cs_toolkit.log_limits import LineLimiter


def test_lines_above_the_limit_are_counted_instead_of_logged(caplog: pytest.LogCaptureFixture) -> None:
    now_s = 0.0
    limiter = LineLimiter(logging.getLogger("limited"), per_minute=3, clock=lambda: now_s)
    for number in range(100):
        now_s = number / 10
        limiter.log(logging.WARNING, "stranger %d", number)
    assert caplog.messages == [
        "stranger 0",
        "stranger 1",
        "stranger 2 (further lines like this one are left out for 60 s)",
    ]
    caplog.clear()
    now_s = 60.0
    limiter.log(logging.WARNING, "stranger %d", 100)
    now_s = 120.0
    limiter.log(logging.WARNING, "stranger %d", 101)
    assert caplog.messages == [
        "stranger 100 (97 lines like this one were left out before)",
        "stranger 101",
    ]


def test_a_single_line_a_minute_says_both(caplog: pytest.LogCaptureFixture) -> None:
    now_s = 0.0
    limiter = LineLimiter(logging.getLogger("limited"), per_minute=1, clock=lambda: now_s)
    limiter.log(logging.WARNING, "a")
    limiter.log(logging.WARNING, "b")
    now_s = 61.0
    limiter.log(logging.WARNING, "c")
    assert caplog.messages == [
        "a (further lines like this one are left out for 60 s)",
        "c (1 lines like this one were left out before) (further lines like this one are left out for 60 s)",
    ]


def test_the_limit_holds_with_many_threads(caplog: pytest.LogCaptureFixture) -> None:
    limiter = LineLimiter(logging.getLogger("limited"), per_minute=5)
    threads = [
        threading.Thread(target=lambda: [limiter.log(logging.WARNING, "line") for _ in range(200)])
        for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(caplog.messages) == 5


def test_lines_that_the_logger_drops_do_not_count(caplog: pytest.LogCaptureFixture) -> None:
    logger = logging.getLogger("limited")
    limiter = LineLimiter(logger, per_minute=1)
    caplog.set_level(logging.WARNING, "limited")
    limiter.log(logging.INFO, "quiet")
    limiter.log(logging.WARNING, "loud")
    assert caplog.messages == ["loud (further lines like this one are left out for 60 s)"]
