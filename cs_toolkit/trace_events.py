"""Events of a trace in the JSON format that Perfetto and chrome://tracing read. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Any

# Name, start and end in seconds, and values by name.
Slice = tuple[str, float, float, Mapping[str, Any] | None]


def name_process(pid: int, name: str) -> list[dict[str, Any]]:
    """Return the events that name a process, and order it by its number."""
    return [
        _metadata("process_name", pid, 0, name=name),
        _metadata("process_sort_index", pid, 0, sort_index=pid),
    ]


def name_track(pid: int, tid: int, name: str) -> list[dict[str, Any]]:
    """Return the events that name a track of a process, and order it by its number."""
    return [
        _metadata("thread_name", pid, tid, name=name),
        _metadata("thread_sort_index", pid, tid, sort_index=tid),
    ]


def _metadata(kind: str, pid: int, tid: int, **values: str | int) -> dict[str, Any]:
    return {"ph": "M", "name": kind, "ts": 0, "pid": pid, "tid": tid, "args": values}


def make_slices(slices: Iterable[Slice], pid: int, tid: int) -> list[dict[str, Any]]:
    """Return the events of one track, nested: a slice that outlasts the one around it is cut at its end.

    Args:
        slices: in any order.
        pid: number of the process.
        tid: number of the track.
    """
    # In whole nanoseconds: the sum of a rounded start and a rounded duration could exceed the next start.
    whole = [(round(1e9 * began), round(1e9 * ended), name, values) for name, began, ended, values in slices]
    events: list[dict[str, Any]] = []
    open_ends: list[int] = []
    for began, ended, name, values in sorted(whole, key=lambda each: (each[0], -each[1])):
        while open_ends and open_ends[-1] <= began:
            open_ends.pop()
        end = max(began, min(ended, *open_ends[-1:]) if open_ends else ended)
        open_ends.append(end)
        event = {"ph": "X", "name": name, "ts": began / 1000, "dur": (end - began) / 1000}
        events.append({**event, "pid": pid, "tid": tid, **({"args": dict(values)} if values else {})})
    return events


def find_problems(trace: Mapping[str, Any]) -> list[str]:
    """Return violations of the rules for metadata and complete events; empty for a valid trace."""
    found = []
    tracks: dict[tuple[int, int], list[tuple[int, int]]] = defaultdict(list)
    for number, event in enumerate(trace["traceEvents"]):
        missing = [key for key in ("ph", "name", "ts", "pid", "tid") if key not in event]
        if missing:
            found.append(f"event {number} has no {', '.join(missing)}")
        elif event["ph"] == "X" and not (event["ts"] >= 0 and event.get("dur", -1) >= 0):
            found.append(f"event {number}, {event['name']}: ts {event['ts']}, dur {event.get('dur')}")
        elif event["ph"] == "X":
            began = round(1000 * event["ts"])
            tracks[event["pid"], event["tid"]].append((began, began + round(1000 * event["dur"])))
    for track, slices in tracks.items():
        open_ends: list[int] = []
        for began, ended in sorted(slices, key=lambda each: (each[0], -each[1])):
            while open_ends and open_ends[-1] <= began:
                open_ends.pop()
            if open_ends and ended > open_ends[-1]:
                found.append(
                    f"track {track}: a slice from {began} to {ended} ns overlaps one to {open_ends[-1]} ns"
                )
            open_ends.append(ended)
    return found
