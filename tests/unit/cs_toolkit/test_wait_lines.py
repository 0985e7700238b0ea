from __future__ import annotations

from cs_toolkit.wait_lines import WaitLines


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
