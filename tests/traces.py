"""Rules that a trace for Perfetto or chrome://tracing must follow."""

from collections import defaultdict
from collections.abc import Mapping
from typing import Any


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
