"""About how many records the files of a pipeline hold: the first file is looked into, all are weighed.

Formats: TFRecord has for each record its length (8 bytes, little endian), a checksum (4), the data, a
checksum (4), see tensorflow/core/lib/io/record_writer.h; text has a record for each line; files of records of
a fixed length say it by their size. What is compressed with gzip or zlib is unpacked, as far as it is looked
into.
"""

from __future__ import annotations

import time
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import tensorflow as tf
from tensorflow.python.framework import op_def_registry

from input_rules.pipeline import Pipeline, Stage, Value
from input_rules.rules.context import records_at
from input_rules.tf.functions import functions_of
from input_rules.tf.graph import Traced
from input_rules.tf.listed_files import names_of
from input_rules.tf.nodes import kind_of

MOST_RECORDS = 4096
MOST_BYTES = 16 << 20
MOST_S = 0.25
"""So much of the first file is looked into."""
MOST_WEIGHED = 64
"""Of so many files, evenly chosen, the size is asked for."""

_CHUNK = 1 << 18
_LENGTH, _AROUND = 8, 16
_UNPACKERS = {"GZIP": 31, "ZLIB": 15}
_CHANGING = frozenset({"MapDataset", "ParallelMapDataset"})
_ONE_TO_ONE = _CHANGING | {"PrefetchDataset", "OptionsDataset"}
_READING = ("TFRecordDataset", "TextLineDataset", "FixedLengthRecordDataset")
_OPENING = frozenset(
    {"TensorSliceDataset", "FlatMapDataset", "InterleaveDataset", "ParallelInterleaveDataset"}
)


@dataclass(frozen=True)
class Reading:
    """How a stage reads files.

    Attributes:
        kind: `TFRecordDataset` and the like.
        compression: "", "GZIP" or "ZLIB".
        lengths: Bytes of a header of the file, a record, a footer, where records are of a fixed length.
        plain: Elements are the records as they are in the files.
    """

    kind: str
    compression: str = ""
    lengths: tuple[int, int, int] = (0, 0, 0)
    plain: bool = True


@dataclass(frozen=True)
class Estimate:
    """About how many records all files hold, and the mean size of one in bytes."""

    records: int
    record_bytes: float


def estimate(names: tuple[str, ...], reading: Reading) -> Estimate | None:
    """Weighs files, and looks into the first one that is not empty.

    Returns:
        None where they cannot be read here, or are not what they should be.
    """
    try:
        chosen = names[:: -(-len(names) // MOST_WEIGHED)]
        sizes = {name: Path(name).stat().st_size for name in chosen}
        first = next((name for name in chosen if sizes[name]), None)
        if first is None:
            return None
        total = sum(sizes.values()) * len(names) / len(chosen)
        if reading.kind == "FixedLengthRecordDataset":
            return _fixed(total, len(names), reading)
        part = _looked_into(first, reading)
    except (OSError, zlib.error):
        return None
    if part is None or not part.records or not part.file_bytes:
        return None
    return Estimate(round(part.records * total / part.file_bytes), part.data_bytes / part.records)


def _fixed(total: float, files: int, reading: Reading) -> Estimate | None:
    header, record, footer = reading.lengths
    if reading.compression or not record:
        return None
    return Estimate(max(0, round((total - files * (header + footer)) / record)), float(record))


@dataclass
class _Part:
    """Of a file: whole records, bytes of their data, and the bytes of the file that these take."""

    records: int = 0
    data_bytes: int = 0
    file_bytes: float = 0.0


def _looked_into(name: str, reading: Reading) -> _Part | None:
    """None where it is no such file."""
    part = _Part()
    rest = b""
    unpacked = used = packed = 0
    end = time.monotonic() + MOST_S
    for read, chunk in _chunks(Path(name), reading.compression):
        packed = read
        unpacked += len(chunk)
        rest += chunk
        taken = _lines(rest, part) if reading.kind == "TextLineDataset" else _records(rest, part)
        rest, used = rest[taken:], used + taken
        if part.records >= MOST_RECORDS or unpacked >= MOST_BYTES or time.monotonic() > end:
            break
    else:
        if rest and reading.kind == "TFRecordDataset" and unpacked < MOST_BYTES:
            return None
        if rest and reading.kind == "TextLineDataset":  # a last line without an end
            part.records, part.data_bytes, used = part.records + 1, part.data_bytes + len(rest), unpacked
    part.file_bytes = packed * used / unpacked if unpacked else 0.0
    return part


def _chunks(file: Path, compression: str) -> Iterator[tuple[int, bytes]]:
    """Bytes of a file read so far, and what of its content is new."""
    unpacker = zlib.decompressobj(_UNPACKERS[compression]) if compression else None
    read = 0
    with file.open("rb") as stream:
        while chunk := stream.read(_CHUNK):
            read += len(chunk)
            if unpacker is None:
                yield read, chunk
                continue
            content = unpacker.decompress(chunk, MOST_BYTES)
            yield read - len(unpacker.unconsumed_tail) - len(unpacker.unused_data), content
            if unpacker.eof or unpacker.unconsumed_tail:
                return


def _records(data: bytes, part: _Part) -> int:
    """Counts whole TFRecords at the begin of data; the bytes that they take."""
    at = 0
    while at + _LENGTH <= len(data) and part.records < MOST_RECORDS:
        length = int.from_bytes(data[at : at + _LENGTH], "little")
        if at + _AROUND + length > len(data):
            break
        at += _AROUND + length
        part.records, part.data_bytes = part.records + 1, part.data_bytes + length
    return at


def _lines(data: bytes, part: _Part) -> int:
    """Counts whole lines; the bytes that they take."""
    end = data.rfind(b"\n") + 1
    lines = data.count(b"\n", 0, end)
    part.records, part.data_bytes = part.records + lines, part.data_bytes + end - lines
    return end


def with_estimates(traced: Traced) -> Traced:
    """The same with `about_records` where files are read, and with `about_bytes`, the size of an element.

    They are kept apart from `records`, which is exact. Where a stage does not read all of the files, because
    a `shard` or a `take` stands before it, it counts for that part.
    """
    pipeline = traced.pipeline
    if not any(stage.attributes.get("reads") for stage in pipeline.stages):
        return traced
    functions = {f.signature.name: f for f in traced.graph.as_graph_def().library.function}
    found = {
        stage.name: replace(stage, attributes={**stage.attributes, **about})
        for stage in pipeline.stages
        if (about := _about(traced, pipeline, stage, functions))
    }
    stages = tuple(found.get(stage.name, stage) for stage in pipeline.stages)
    return replace(traced, pipeline=replace(pipeline, stages=stages))


def _about(
    traced: Traced, pipeline: Pipeline, stage: Stage, functions: Mapping[str, Any]
) -> dict[str, Value]:
    if not stage.attributes.get("reads"):
        return {}
    nodes = traced.nodes[stage.name]
    source, part = stage, 1.0
    if stage.inputs:
        sources = [other for other in pipeline.before(stage) if not other.inputs]
        if len(stage.inputs) != 1 or len(sources) != 1:
            return {}
        source = sources[0]
    names = next(filter(None, map(names_of, traced.nodes[source.name])), None)
    reading = _reading(nodes, functions)
    if not names or reading is None:
        return {}
    if stage.inputs:
        read = records_at(pipeline, pipeline.by_name[stage.inputs[0]])
        if read is None:
            return {}
        part = read / len(names)
    about = estimate(names, reading)
    if about is None:
        return {}
    size: dict[str, Value] = {"about_bytes": about.record_bytes} if reading.plain else {}
    return {"about_records": round(part * about.records), **size}


def _reading(nodes: tuple[Any, ...], functions: Mapping[str, Any]) -> Reading | None:
    """How the functions of a stage read a file; None where they do more than open it and change records."""
    found: Reading | None = None
    plain = not any(kind_of(node.type) in _CHANGING for node in nodes)
    if any(kind_of(node.type) not in _OPENING | _ONE_TO_ONE for node in nodes):
        return None
    for function in (inner for node in nodes for inner in functions_of(node, functions)):
        constants = {node.name: node for node in function.node_def if node.op == "Const"}
        for node in function.node_def:
            kind = kind_of(node.op)
            if not kind.endswith("Dataset"):
                continue
            if kind in _READING:
                reading = _arguments(kind, node, constants)
                if found is not None or reading is None:
                    return None
                found = reading
            elif kind in _ONE_TO_ONE:
                plain = plain and kind not in _CHANGING
            elif kind not in _OPENING:
                return None
    return None if found is None else replace(found, plain=plain)


def _arguments(kind: str, node: Any, constants: Mapping[str, Any]) -> Reading | None:
    """The constants that a reader is called with; None where its compression is not one of them."""
    names = [argument.name for argument in op_def_registry.get(node.op).input_arg]
    values: dict[str, Any] = {}
    for name, tensor in zip(names, node.input, strict=False):
        constant = constants.get(tensor.partition(":")[0])
        if constant is not None:
            values[name] = tf.make_ndarray(constant.attr["value"].tensor).item()
    compression = values.get("compression_type", b"" if "compression_type" not in names else None)
    if compression is None or compression.decode() not in ("", *_UNPACKERS):
        return None
    lengths = tuple(int(values.get(name) or 0) for name in ("header_bytes", "record_bytes", "footer_bytes"))
    return Reading(kind, compression.decode(), (lengths[0], lengths[1], lengths[2]))
