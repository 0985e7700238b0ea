"""Files that our programs write, and that a full disk, a user or another version may have changed."""

from __future__ import annotations

import json
import re
import struct
from dataclasses import asdict

from cs_runtime import input_record, requeue, run_files, training_lock
from cs_runtime.errors import InputOrderError
from cs_stream.order import pack_schedule
from cs_system.errors import GroupError
from cs_system.part_spans import MappedSpans, read_spans
from cs_system.server.state_directory import StateDirectory
from cs_system.swarmx.membership import GroupFile
from cs_system.usage import UsageRecord, sum_usage
from cs_toolkit.security.secret_file import SecretFileError, read_secret
from cs_toolkit.spans import ClockSample, SpanRing, span_document
from csrun.jobs import progress, registry, timeline
from csrun.jobs.record import SPANS_DIR
from tests.fuzz.target import Target, temporary_file

PROGRESS = progress.TrainingProgress(7, 0, 100, "model_dir", 0.5, 10.0, 20.0, 0.1)
USAGE = UsageRecord("job", "user@host", 1e9, 1e9 + 60, 1, 7, 14, "pipelined", "key", "released")
RECORDS = (
    input_record.InputRecord(7, 2, 64, "global", 7, "00"),
    input_record.InputRecord(7, 2, 4, "global", 7, "00", 0, (2, 2, 2, 1)),
)


def parse_job(data: bytes) -> None:
    """Files of the launcher and of a training run."""
    path = temporary_file(data, "job/job.json")
    unnamed = registry._from_directory(path.parent)
    registry._read(path)
    registry.scheduler_number(unnamed, registry.read_record(unnamed))
    (path.parent / progress.FILE_NAME).write_bytes(data)
    progress.read_progress(path.parent)
    run_files._read(path)
    requeue._read(path, "job")
    with path.open("rb") as file:
        training_lock._read_holder(file.fileno())


def parse_input_record(data: bytes) -> None:
    path = temporary_file(data, f"input/{input_record.FILE_NAME}")
    record = input_record.read_record(path.parent, 7)
    if record is not None:
        record.place()


def parse_order(data: bytes) -> None:
    shards, schedule = input_record._read_order(temporary_file(data))
    assert shards > 0
    assert len(schedule) == len(data) - 2


def parse_state_directory(data: bytes) -> None:
    for old in temporary_file(b"", "state/old").parent.iterdir():
        old.unlink()
    for name in ("running.json", "settings.json", "usage-2001-09.jsonl"):
        path = temporary_file(data, f"state/{name}")
    directory = StateDirectory(path.parent)
    directory.read_admission()
    sum_usage(directory.read_records(0.0), 0.0, 2e9, "user")


def parse_spans(data: bytes) -> None:
    read_spans(temporary_file(data, "spans-1"), 0.0, 10)


def parse_timeline(data: bytes) -> None:
    path = temporary_file(data, f"log/{SPANS_DIR}/worker.json")
    documents = timeline.read_documents(path.parents[1])
    if documents:
        timeline.make_trace(documents, {})
        timeline.count_spans(documents)


def parse_secret(data: bytes) -> None:
    path = temporary_file(data, "secret")
    path.chmod(0o600)
    read_secret(path)


def job_seeds() -> list[bytes]:
    job = registry.KnownJob("job", "/logs", "slurm", ("python", "run.py"), "12", 1e9)
    record = {**asdict(job), "job": "job", "checkpoint": "model.ckpt-7", "mode": "train", "total_samples": 7}
    holder = {"job": "job", "host": "host", "pid": 7, "since": "now"}
    return [json.dumps(each).encode() for each in (record, asdict(PROGRESS), holder)]


def spans_seeds() -> list[bytes]:
    path = temporary_file(b"", "spans-2")
    path.unlink()
    spans = MappedSpans(path, "worker", 4)
    for number in range(6):
        spans.add("track", "name", 1.0, 2.0, ("batch", number))
    return [_without_process(path.read_bytes())]


def timeline_seeds() -> list[bytes]:
    ring = SpanRing()
    ring.add("track", "name", 1.0, 2.0, ("batch", 7))
    ring.add("track", "inner", 1.2, 1.8)
    document = json.dumps(span_document("worker 0", ring, [ClockSample(1.0, 2.0, 0.1)])).encode()
    return [_without_process(document)]


def _without_process(document: bytes) -> bytes:
    """Replace what differs between processes, so that the mutations are the same ones everywhere."""
    pattern = rb'"host": "[^"]*", "pid": \d+, "clock": "[^"]*", "wall_offset_s": [\d.]+'
    fixed = b'"host": "host", "pid": 7, "clock": "boot", "wall_offset_s": 1.5'
    return re.sub(pattern, lambda found: fixed.ljust(len(found[0])), document)


TARGETS = [
    Target("records.job", parse_job, (), job_seeds),
    Target(
        "records.input",
        parse_input_record,
        (),
        lambda: [json.dumps(asdict(record)).encode() + b"\n" for record in RECORDS],
    ),
    Target("records.order", parse_order, (InputOrderError,), lambda: [pack_schedule([4, 0, 3, 2, 1])]),
    Target(
        "records.system_state",
        parse_state_directory,
        (),
        lambda: [
            json.dumps(USAGE.to_json()).encode() + b"\n",
            json.dumps({"drained_by": "user", "drained_s": 1e9, "modes": ["pipelined"]}).encode(),
        ],
    ),
    Target("records.spans", parse_spans, (ValueError, KeyError, struct.error), spans_seeds),
    Target("records.timeline", parse_timeline, (), timeline_seeds),
    Target(
        "records.group",
        lambda data: GroupFile.read(temporary_file(data)),
        (GroupError,),
        lambda: [json.dumps(asdict(GroupFile("host", 7, "token", True))).encode()],
    ),
    Target("records.secret", parse_secret, (SecretFileError,), lambda: [b"0123456789abcdef" * 4 + b"\n"]),
]
