"""The merged timeline: valid for Perfetto whatever the spans, with aligned clocks."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from csrun.jobs.timeline import align, make_trace, read_documents
from tests.traces import find_problems


def document(process: str, spans: list[Any], clock: str = "a", **changes: Any) -> dict[str, Any]:
    return {
        "process": process,
        "host": "host",
        "pid": 7,
        "clock": clock,
        "wall_offset_s": 0.0,
        "samples": [],
        "truncated": False,
        "spans": spans,
        **changes,
    }


def slices(trace: dict[str, Any]) -> list[dict[str, Any]]:
    return [event for event in trace["traceEvents"] if event["ph"] == "X"]


times = st.floats(0, 1e6)
spans = st.lists(
    st.tuples(
        st.sampled_from(["one", "two"]),
        st.sampled_from(["compute", "wait"]),
        times,
        times,
        st.none() | st.tuples(st.just("batch"), st.integers(0, 9)),
    ).map(list),
    max_size=12,
)


@given(spans, spans)
def test_every_trace_is_valid(first: list[Any], second: list[Any]) -> None:
    trace = make_trace([document("chief", first), document("CS system", second)], {"job": "j"})
    assert find_problems(json.loads(json.dumps(trace))) == []
    assert len(slices(trace)) == len(first) + len(second)


def test_invalid_traces_are_found() -> None:
    event = {"ph": "X", "name": "a", "ts": 0, "dur": 5, "pid": 1, "tid": 1}
    assert find_problems({"traceEvents": [event]}) == []
    for wrong in ({"dur": -1}, {"ts": -1}):
        assert find_problems({"traceEvents": [event | wrong]})
    assert find_problems({"traceEvents": [{key: event[key] for key in event if key != "tid"}]})
    assert find_problems({"traceEvents": [event, event | {"ts": 4}]})
    assert find_problems({"traceEvents": [event, event | {"ts": 4, "tid": 2}]}) == []
    assert find_problems({"traceEvents": [event, event | {"ts": 4, "dur": 1}]}) == []


def test_the_clock_of_another_host_is_aligned_with_that_of_the_system() -> None:
    sample = {"at_s": 1000.0, "offset_s": 50.0, "error_s": 0.001}
    worse = {"at_s": 1010.0, "offset_s": 50.3, "error_s": 0.5}
    worker = document("worker 0", [["t", "send", 1000.0, 1001.0, None]], "b", samples=[worse, sample])
    system = document("CS system", [["t", "receive", 1050.0, 1051.0, None]])
    trace = make_trace([worker, system], {})
    sent, received = sorted(slices(trace), key=lambda event: event["name"], reverse=True)
    assert abs(sent["ts"] - received["ts"]) <= 1
    facts = {each["process"][:6]: each for each in trace["otherData"]["processes"]}
    assert facts["worker"]["clock"] == "calls"
    assert 0.001 <= facts["worker"]["error_s"] < 0.0012  # and the drift of a second
    assert trace["otherData"]["clock_error_s"] == facts["worker"]["error_s"]


def test_a_process_that_never_reached_the_system_has_an_unknown_error() -> None:
    worker = document("worker 0", [["t", "wait", 5.0, 6.0, None]], "b", wall_offset_s=30.0)
    system = document("CS system", [], wall_offset_s=10.0)
    assert align(worker, system).offset_s == 20.0
    assert make_trace([worker, system], {})["otherData"]["clock_error_s"] is None


def test_processes_are_in_the_order_of_the_data() -> None:
    names = ["worker 1", "worker 0", "MemoryX", "CS system", "wafer 0", "chief"]
    trace = make_trace([document(name, []) for name in names], {})
    shown = [
        event["args"]["name"].split(" (")[0]
        for event in trace["traceEvents"]
        if event["name"] == "process_name"
    ]
    assert shown == ["chief", "CS system", "wafer 0", "MemoryX", "worker 0", "worker 1"]


def test_a_file_that_is_not_complete_is_left_out(tmp_path: Path) -> None:
    (tmp_path / "spans").mkdir()
    (tmp_path / "spans" / "a.json").write_text(json.dumps(document("chief", [])))
    (tmp_path / "spans" / "b.json").write_text('{"process": "wor')
    (tmp_path / "spans" / "c.json").write_text("[]")
    assert [each["process"] for each in read_documents(tmp_path)] == ["chief"]


def test_a_sample_of_the_clock_of_one_of_several_systems_is_not_used() -> None:
    sample = {"at_s": 1000.0, "offset_s": 50.0, "error_s": 0.001}
    chief = document("chief", [["t", "training", 1000.0, 1001.0, None]], "c", samples=[sample])
    systems = [document("CS system", [["t", "compute", 5.0, 6.0, None]], clock) for clock in ("a", "b")]
    assert make_trace([chief, *systems[:1]], {})["otherData"]["processes"][0]["clock"] == "calls"
    assert make_trace([chief, *systems], {})["otherData"]["processes"][0]["clock"] == "wall clock"
