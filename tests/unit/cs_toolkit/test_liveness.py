from __future__ import annotations

import pytest

from cs_toolkit.errors import UsageError
from cs_toolkit.network.liveness import (
    DEFAULT_PEER_TIMEOUT_S,
    SilenceTimer,
    parse_peer_timeout,
    peer_timeout_s,
)


def lines_due(timer: SilenceTimer, start_s: float, end_s: float) -> list[float]:
    """Check a timer regularly; return the silences at which a line was due."""
    due, now_s = [], start_s
    while now_s < end_s:
        now_s += timer.check_every_s
        if timer.check(now_s):
            due.append(round(timer.silence_s, 3))
    return due


def test_a_line_is_due_every_ten_seconds_until_the_peer_counts_as_lost() -> None:
    timer = SilenceTimer(60.0, 100.0)
    assert lines_due(timer, 100.0, 159.0) == [10.0, 20.0, 30.0, 40.0, 50.0]
    assert not timer.is_over
    timer.check(160.0)
    assert timer.is_over


def test_a_short_timeout_has_lines_too() -> None:
    assert lines_due(SilenceTimer(3.0, 0.0), 0.0, 2.5) == [1.0, 2.0]


def test_a_sign_of_life_restarts_the_silence_and_tells_of_one_that_was_reported() -> None:
    timer = SilenceTimer(60.0, 0.0)
    lines_due(timer, 0.0, 5.0)
    assert timer.heard(5.0) is None
    lines_due(timer, 5.0, 30.0)
    assert timer.heard(30.5) == 25.5
    assert lines_due(timer, 30.5, 45.0) == [10.0]


@pytest.mark.parametrize("stopped_s", [11.0, 45.0, 3600.0, 1e6])
def test_time_in_which_this_process_was_stopped_is_no_silence_of_the_peer(stopped_s: float) -> None:
    timer = SilenceTimer(60.0, 0.0)
    lines_due(timer, 0.0, 5.0)
    assert not timer.check(5.0 + stopped_s)
    assert timer.silence_s <= 6.0
    assert not timer.is_over
    assert lines_due(timer, 5.0 + stopped_s, 5.0 + stopped_s + 53.0) == [10.0, 20.0, 30.0, 40.0, 50.0]


def test_the_stop_may_come_after_long_silence() -> None:
    timer = SilenceTimer(60.0, 0.0)
    lines_due(timer, 0.0, 58.0)
    timer.check(200.0)
    assert not timer.is_over, "the peer's answer may have arrived while this process was stopped"


@pytest.mark.parametrize(("text", "seconds"), [("60", 60.0), ("2.5", 2.5), ("86400", 86400.0)])
def test_a_peer_timeout_is_a_number_of_seconds(text: str, seconds: float) -> None:
    assert parse_peer_timeout(text) == seconds
    assert peer_timeout_s({"CS_PEER_TIMEOUT_S": f" {text} "}) == seconds


@pytest.mark.parametrize("text", ["0", "0.5", "-3", "nan", "inf", "a minute", "86401"])
def test_other_peer_timeouts_are_refused(text: str) -> None:
    with pytest.raises(UsageError, match=r"CS_PEER_TIMEOUT_S is .*; expected seconds, 1 to 86400"):
        peer_timeout_s({"CS_PEER_TIMEOUT_S": text})


def test_the_default_peer_timeout_is_a_minute() -> None:
    assert peer_timeout_s({}) == peer_timeout_s({"CS_PEER_TIMEOUT_S": ""}) == DEFAULT_PEER_TIMEOUT_S == 60.0
