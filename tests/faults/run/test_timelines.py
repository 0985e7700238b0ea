"""Timelines of real jobs, complete and killed ones."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import pytest

from cs_toolkit.execution_options import EXECUTION_VARIABLE
from tests.systems import RunningSystem, running_system
from tests.traces import find_problems

from .training_jobs import ROOT, finish, launch, wait_for_log, wait_idle


def trace(folder: Path) -> dict[str, Any]:
    command = [str(ROOT / "bin" / "csrun"), "trace", str(folder / "logs"), "-o", "-"]
    ran = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True)
    found: dict[str, Any] = json.loads(ran.stdout)
    assert find_problems(found) == []
    return found


def names_by_track(found: dict[str, Any]) -> dict[tuple[str, str], list[str]]:
    """Return the names of spans by process and track, in the order of their starts."""
    processes, tracks, events = {}, {}, []
    for event in found["traceEvents"]:
        if event["name"] == "process_name":
            processes[event["pid"]] = event["args"]["name"].split(" (")[0]
        elif event["name"] == "thread_name":
            tracks[event["pid"], event["tid"]] = event["args"]["name"]
        elif event["ph"] == "X":
            events.append(event)
    names: dict[tuple[str, str], list[str]] = {}
    for event in sorted(events, key=lambda event: event["ts"]):
        track = processes[event["pid"]], tracks[event["pid"], event["tid"]]
        names.setdefault(track, []).append(event["name"])
    return names


def test_the_timeline_of_a_job_shows_what_every_process_did(
    system: RunningSystem, forked: tuple[str, ...], tmp_path: Path
) -> None:
    code, output = finish(launch(system, tmp_path, 60, before=forked))
    assert code == 0, output
    found = trace(tmp_path)
    assert found["otherData"]["clock_error_s"] == 0.0  # all on one host
    names = names_by_track(found)
    for worker in (0, 1):
        sent = names[f"worker {worker}", "batches"]
        assert sent[:4] == ["build the input", "input function", "digest", "send"]
        assert sent.count("send") == sent.count("input function") == 30
        assert names["CS system", f"receive from worker {worker}"] == ["receive"] * 30
    assert set(names["CS system", "device"]) <= {"compute", "wait for a batch"}
    assert names["CS system", "operations"][:3] == ["load", "program", "put state"]
    assert {"compile", "prime the input", "training", "checkpoint"} <= set(names["chief", "phases"])
    last = max(event["args"]["last step"] for event in found["traceEvents"] if event["name"] == "compute")
    assert last == 60


def test_a_batch_is_received_after_it_was_made(
    system: RunningSystem, forked: tuple[str, ...], tmp_path: Path
) -> None:
    code, output = finish(launch(system, tmp_path, 40, tasks=2, before=forked))
    assert code == 0, output
    events = [event for event in trace(tmp_path)["traceEvents"] if event["ph"] == "X"]
    made = {e["args"]["batch"]: e["ts"] + e["dur"] for e in events if e["name"] == "input function"}
    received = {e["args"]["batch"]: e["ts"] + e["dur"] for e in events if e["name"] == "receive"}
    assert set(received) == set(made) == set(range(40))
    assert all(received[batch] >= made[batch] for batch in made)


def has_time_namespaces() -> bool:
    command = ["unshare", "--time", "--fork", "--monotonic=1000", "true"]
    return shutil.which("unshare") is not None and not subprocess.run(command, check=False).returncode


@pytest.mark.skipif("not has_time_namespaces()", reason="only root may create a time namespace")
def test_a_process_with_another_clock_is_aligned(system: RunningSystem, tmp_path: Path) -> None:
    # A worker whose monotonic clock is 1000 s ahead, as that of another machine.
    run = 'unshare --time --fork --kill-child --monotonic=1000 "$0" "$@"'
    shell = ("sh", "-c", f'[ "$CSRUN_RANK" = 1 ] && exec {run}; exec "$0" "$@"')
    code, output = finish(launch(system, tmp_path, 300, tasks=2, before=shell, FAULT="slow"))
    assert code == 0, output
    found = trace(tmp_path)
    processes = {each["process"].split(" (")[0]: each for each in found["otherData"]["processes"]}
    worker = processes["worker 0"]
    assert worker["clock"] == "calls"
    assert abs(worker["offset_s"] + 1000) <= worker["error_s"] < 0.1
    assert processes["chief"]["clock"] == "same clock"
    events = [event for event in found["traceEvents"] if event["ph"] == "X" and "args" in event]
    made = {e["args"]["batch"]: e["ts"] + e["dur"] for e in events if e["name"] == "input function"}
    received = {e["args"]["batch"]: e["ts"] + e["dur"] for e in events if e["name"] == "receive"}
    assert len(made) == len(received) == 300
    assert all(received[batch] >= made[batch] - 1e6 * worker["error_s"] for batch in made)


def test_a_killed_job_has_a_timeline(system: RunningSystem, tmp_path: Path) -> None:
    job = launch(system, tmp_path, 1_000_000, tasks=2, FAULT="slow")
    wait_for_log(tmp_path, "global step 400:", job)  # 16 ms each: files are written after 2 and 6 s
    tasks = json.loads((tmp_path / "logs" / "job.json").read_text())["tasks"]
    for task in reversed(tasks):
        os.kill(task["pid"], signal.SIGKILL)
    assert finish(job)[0] != 0
    wait_idle(system)
    names = names_by_track(trace(tmp_path))
    assert "send" in names["worker 0", "batches"]
    assert "compute" in names["CS system", "device"]
    assert "prime the input" in names["chief", "phases"]


def test_the_timeline_of_weight_streaming_has_wafers_and_memoryx(
    forked: tuple[str, ...], tmp_path: Path
) -> None:
    server = tmp_path / "server"
    server.mkdir()
    with running_system(server, ["--num-csx=2", f"--memoryx-dir={server}"]) as system:
        for wafers in (1, 2):
            folder = tmp_path / f"job{wafers}"
            folder.mkdir()
            environment = {EXECUTION_VARIABLE: "weight_streaming", "NUM_CSX": str(wafers)}
            code, output = finish(launch(system, folder, 30, tasks=2, before=forked, **environment))
            assert code == 0, output
            names = names_by_track(trace(folder))
            assert set(names["MemoryX", "update"]) == {"update"}
            assert names["MemoryX", "update"].count("update") == 30
            assert {"wait for the update", "send weights"} <= set(names["MemoryX", "weights out"])
            assert "receive results" in names["MemoryX", "results in"]
            for wafer in range(wafers):
                calls = names[f"wafer {wafer}", "compute"]
                assert len(calls) == len(names[f"wafer {wafer}", "weights"])
                assert len(calls) % 30 == 0
            assert ("wafer 1", "compute") in names or wafers == 1
        assert len(list(spans_folder(system).iterdir())) <= 1  # of ended processes none


def spans_folder(system: RunningSystem) -> Path:
    environment = Path(f"/proc/{system.process.pid}/environ").read_bytes()
    folder = Path(tempfile.gettempdir())
    for entry in environment.split(b"\0"):
        if entry.startswith(b"TMPDIR="):
            folder = Path(entry.partition(b"=")[2].decode())
    (found,) = folder.glob(f"cs_spans_*_{system.process.pid}_*")
    return found


def test_a_job_without_spans_is_an_error_that_says_so(tmp_path: Path) -> None:
    (tmp_path / "job.json").write_text('{"job_id": "local-1"}')
    command = [str(ROOT / "bin" / "csrun"), "trace", str(tmp_path)]
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ran.returncode == 1
    assert "csrun: job local-1 has no spans" in ran.stderr
