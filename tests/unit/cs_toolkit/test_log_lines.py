from __future__ import annotations

import logging
import threading

import pytest

from cs_toolkit.log_lines import LineLimiter, WaitLines


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


def wait(lines: WaitLines, start_s: float, end_s: float, reason: str = "its chief compiles") -> list[float]:
    """Wait for a reason, asking every two seconds; return the times of the lines."""
    times, now_s = [], start_s
    while now_s < end_s:
        now_s += 2.0
        if lines.is_due(f"waiting for the chief, for {now_s - start_s:.0f} s: {reason}", now_s):
            times.append(now_s)
    return times


def test_a_quiet_hour_has_few_lines() -> None:
    assert wait(WaitLines(0.0), 0.0, 3600.0) == [8.0, 68.0, 188.0, 428.0, 908.0, 1868.0]


def test_a_day_has_a_line_every_half_hour() -> None:
    assert 48 <= len(wait(WaitLines(0.0), 0.0, 86_400.0)) <= 55


def test_another_reason_has_a_line_at_once() -> None:
    lines = WaitLines(0.0)
    assert wait(lines, 0.0, 60.0, "held by a") == [8.0]
    assert wait(lines, 60.0, 100.0, "held by b") == [62.0]
    assert wait(lines, 100.0, 164.0, "held by a") == [102.0, 162.0]


def test_reasons_that_change_all_the_time_do_not_flood() -> None:
    lines, times = WaitLines(0.0), []
    for second in range(600):
        if lines.is_due(f"{second} of 600 workers ready", float(second)):
            times.append(second)
    assert times == list(range(7, 600, 10))


def test_waits_that_end_soon_are_silent() -> None:
    lines = WaitLines(0.0)
    for start_s in range(0, 6000, 6):
        lines.restart(float(start_s))
        assert wait(lines, start_s, start_s + 5) == []


def test_many_waits_for_the_same_reason_have_a_line_a_minute() -> None:
    lines, times = WaitLines(0.0), []
    for start_s in range(0, 3600, 20):
        lines.restart(float(start_s))
        times += wait(
            lines, start_s, start_s + 18, f"no batch of worker 1 (connected after {start_s} batches)"
        )
    assert 30 <= len(times) <= 60


def test_a_wait_long_after_another_one_has_its_line_soon() -> None:
    lines = WaitLines(0.0)
    wait(lines, 0.0, 4000.0)
    lines.restart(5000.0)
    assert wait(lines, 5000.0, 5100.0)[0] <= 5060.0
