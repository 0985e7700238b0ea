"""Work reports of wafers: which one is a straggler."""

from __future__ import annotations

from contextlib import nullcontext
from types import SimpleNamespace

import pytest

from cs_system.authentication import Call
from cs_system.client import StepStream
from cs_system.proto import cs_system_pb2 as pb
from cs_system.swarmx.health import StragglerMonitor, WorkReport


def pace(*seconds: tuple[float, float], last_s: int = 8) -> StragglerMonitor:
    """Wafers that compute and get weights for given parts of each second."""
    made = StragglerMonitor(len(seconds))
    for now_s in range(last_s + 1):
        for rank, (computing_s, receiving_s) in enumerate(seconds):
            made.record(rank, WorkReport(now_s * computing_s, now_s * receiving_s), now_s)
    return made


def test_wafers_that_work_alike_are_not_distinguished() -> None:
    even = pace((0.3, 0.02), (0.33, 0.05), (0.36, 0.02))
    assert even.straggler() is None
    shares = even.utilization()
    assert shares is not None
    assert [share.computing for share in shares] == pytest.approx([0.3, 0.33, 0.36])


def test_the_wafer_for_which_the_others_wait_is_named(caplog: pytest.LogCaptureFixture) -> None:
    slow = pace((0.1, 0.01), (0.4, 0.01), (0.12, 0.01))
    expected = "CS system 2 of 3 is slow: it computes for 40% of the time, the others for 11%"
    assert (slow.straggler() or "").startswith(expected)
    slow.log_changes(8.0)
    assert slow.report is None  # it may be slow for a moment
    slow.log_changes(10.0)
    slow.log_changes(12.0)
    assert [record.message[: len(expected)] for record in caplog.records] == [expected]
    assert slow.report == caplog.messages[0]


def test_the_log_of_a_job_names_a_slow_wafer(caplog: pytest.LogCaptureFixture) -> None:
    span = pb.StepSpan(first_step=0, count=2, last=True)
    news = pb.RunEvent(news="CS system 2 of 2 is slow")
    events = iter([pb.RunEvent(span=span), news, pb.RunEvent(span=span), pb.RunEvent(end=pb.RunEnd())])
    tags = Call("secret", "system", "client", 0).answered_tensors()
    stream = StepStream(SimpleNamespace(errors=nullcontext), events, tags)  # type: ignore[arg-type]
    assert [found.count for found in stream] == [2, 2]
    assert caplog.messages == ["CS system 2 of 2 is slow"]


def test_a_slow_network_is_distinguished_from_a_slow_wafer() -> None:
    assert "1 of 2 is slow: it gets its weights for 60%" in (pace((0.1, 0.6), (0.1, 0.1)).straggler() or "")


def test_small_differences_are_not_reported() -> None:
    assert pace((0.1, 0.0), (0.9, 0.0), last_s=3).straggler() is None
    assert pace((0.001, 0.0), (0.01, 0.0)).straggler() is None  # ten times as long, and nobody notices
    assert StragglerMonitor(2).straggler() is None


def test_only_the_last_seconds_count() -> None:
    made = pace((0.1, 0.0), (0.4, 0.0))
    assert made.straggler()
    for now_s in range(9, 30):
        made.record(0, WorkReport(now_s * 0.1, 0.0), now_s)
        made.record(1, WorkReport(3.2 + (now_s - 8) * 0.1, 0.0), now_s)
    assert made.straggler() is None


def test_what_wafers_wait_for_is_forwarded() -> None:
    made = pace((0.1, 0.0), (0.1, 0.0))
    assert made.unresponsive() is None
    made.record(
        1, WorkReport.from_json(WorkReport(1.0, 0.0, "MemoryX at a:1 has not answered for 6 s").to_json())
    )
    assert made.unresponsive() == "MemoryX at a:1 has not answered for 6 s"
