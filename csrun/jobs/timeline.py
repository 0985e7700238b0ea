"""The timeline of a job: the spans of all its processes as a trace of Chrome and Perfetto. Pure.

The processes write documents of their spans (`cs_toolkit.spans`) into the directory `spans` of the job. All
times of the trace are those of the system's monotonic clock.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cs_toolkit.files import read_json
from cs_toolkit.spans import Slice, make_slices, name_process, name_track
from csrun.jobs.record import SPANS_DIR

SYSTEM = "CS system"
# Clocks of machines drift apart by less than this, also without NTP: quartz is good for 20 to 50 ppm.
DRIFT = 1e-4

# Processes of the same kind are next to each other, in this order.
_KINDS = ("chief", SYSTEM, "wafer", "MemoryX", "worker")

# Of a time in seconds, thousands of years after any clock's: nanoseconds of it are exact enough for a trace.
_MAX_S = 1e12


@dataclass(frozen=True)
class Alignment:
    """How the clock of a process is aligned with the clock of the system.

    Attributes:
        offset_s: added to the times of the process.
        error_s: the times are wrong by at most this; None if that is unknown.
        method: "same clock", "calls" of the control plane, or "wall clock" of both hosts.
    """

    offset_s: float
    error_s: float | None
    method: str


def read_documents(log_dir: Path) -> list[dict[str, Any]]:
    """Read the documents of a job, without those that are not complete or of another version."""
    documents = []
    for path in sorted((log_dir / SPANS_DIR).glob("*.json")):
        with suppress(OSError, ValueError):
            document = read_json(path)
            if _is_document(document):
                documents.append(document)
    return documents


def _is_document(found: Any) -> bool:
    """Return True if a JSON value has the form of `cs_toolkit.spans.span_document`."""
    with suppress(LookupError, TypeError, ValueError):
        numbers = [found["wall_offset_s"], *(span[at] for span in found["spans"] for at in (2, 3))]
        numbers += [sample[key] for sample in found["samples"] for key in ("at_s", "offset_s", "error_s")]
        texts = [found[key] for key in ("process", "host", "clock")]
        texts += [text for track, name, _, _, _ in found["spans"] for text in (track, name)]
        details = [detail for *_, detail in found["spans"] if detail is not None]
        return (
            all(isinstance(text, str) for text in texts)
            and all(type(number) in (int, float) and abs(number) < _MAX_S for number in numbers)
            and all(isinstance(label, str) for label, _ in details)
            and isinstance(found["pid"], int)
            and isinstance(found["truncated"], bool)
        )
    return False


def align(document: Mapping[str, Any], system: Mapping[str, Any]) -> Alignment:
    """Align the clock of a process with that of the system.

    Args:
        document: of the process.
        system: of the system, or of any other process if the system's is missing.
    """
    if document["clock"] == system["clock"]:
        return Alignment(0.0, 0.0, "same clock")
    times = [time for span in document["spans"] for time in (span[2], span[3])] or [0.0]
    first_s, last_s = min(times), max(times)
    found = []
    for sample in document["samples"]:
        farthest_s = max(abs(sample["at_s"] - first_s), abs(sample["at_s"] - last_s))
        found.append((sample["error_s"] + DRIFT * farthest_s, sample["offset_s"]))
    if found:
        error_s, offset_s = min(found)
        return Alignment(offset_s, error_s, "calls")
    return Alignment(document["wall_offset_s"] - system["wall_offset_s"], None, "wall clock")


def make_trace(documents: Sequence[Mapping[str, Any]], job: Mapping[str, Any]) -> dict[str, Any]:
    """Merge documents into a trace in the JSON format of trace events.

    Args:
        documents: of the processes, at least one.
        job: facts for the metadata of the trace.
    """
    system = next((each for each in documents if each["process"] == SYSTEM), documents[0])
    ordered = sorted(documents, key=lambda each: (_kind(each["process"]), each["process"], each["pid"]))
    # A requeued job may have used systems on several hosts, and a sample does not name its system.
    if len({each["clock"] for each in documents if each["process"] == SYSTEM}) > 1:
        ordered = [{**each, "samples": []} for each in ordered]
    aligned = [(each, align(each, system)) for each in ordered]
    starts = [span[2] + alignment.offset_s for each, alignment in aligned for span in each["spans"]]
    origin_s = min(starts, default=0.0)
    events: list[dict[str, Any]] = []
    processes = []
    for number, (document, alignment) in enumerate(aligned, 1):
        name = f"{document['process']} ({document['host']}, pid {document['pid']})"
        events += _process_events(document, number, name, alignment.offset_s - origin_s)
        processes.append(
            {
                "process": name,
                "clock": alignment.method,
                "offset_s": alignment.offset_s,
                "error_s": alignment.error_s,
                "truncated": bool(document["truncated"]),
            }
        )
    return {
        "traceEvents": events,
        "displayTimeUnit": "ms",
        "otherData": {
            **job,
            "started": system["wall_offset_s"] + origin_s,
            "clock_error_s": _largest_error(processes),
            "processes": processes,
        },
    }


def _largest_error(processes: Iterable[Mapping[str, Any]]) -> float | None:
    errors = [process["error_s"] for process in processes]
    return None if None in errors else max(errors, default=0.0)


def _kind(process: str) -> int:
    kinds = [number for number, kind in enumerate(_KINDS) if process.startswith(kind)]
    return kinds[0] if kinds else len(_KINDS)


def _process_events(
    document: Mapping[str, Any], pid: int, name: str, offset_s: float
) -> list[dict[str, Any]]:
    tracks: dict[str, list[Slice]] = defaultdict(list)
    for track, span, began_s, ended_s, detail in document["spans"]:
        values = {detail[0]: detail[1]} if detail else None
        tracks[track].append((span, began_s + offset_s, ended_s + offset_s, values))
    events = name_process(pid, name)
    for tid, (track, slices) in enumerate(sorted(tracks.items()), 1):
        events += [*name_track(pid, tid, track), *make_slices(slices, pid, tid)]
    return events


def count_spans(documents: Iterable[Mapping[str, Any]]) -> int:
    """Return the number of spans in documents."""
    return sum(len(document["spans"]) for document in documents)
