"""The messages of every control protocol that is still spoken keep their fields.

A side of the previous minor version reads our messages by the numbers and types of its fields.
protocol_N.txt has those of protocol N, as they were when its first release was made; `UPDATE_GOLDEN=1` writes
the file of the newest protocol. A field may be added. One that is removed, renumbered or changed needs a new
PROTOCOL_VERSION; the file of an older protocol is removed together with its code.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from google.protobuf.descriptor import Descriptor, FieldDescriptor

from cs_system.proto import cs_system_pb2 as pb
from cs_system.transport import OLDEST_PROTOCOL, PROTOCOL_VERSION

FOLDER = Path(__file__).parent
TYPES = {value: name[5:].lower() for name, value in vars(FieldDescriptor).items() if name.startswith("TYPE_")}


def _describe() -> Iterator[str]:
    for service in pb.DESCRIPTOR.services_by_name.values():
        for method in service.methods:
            request = "stream " * method.client_streaming + method.input_type.name
            answer = "stream " * method.server_streaming + method.output_type.name
            yield f"{method.name}: {request} -> {answer}"
    for name in sorted(pb.DESCRIPTOR.message_types_by_name):
        yield from _describe_message(pb.DESCRIPTOR.message_types_by_name[name], name)


def _describe_message(message: Descriptor, name: str) -> Iterator[str]:
    for field in message.fields:
        kind = TYPES[field.type] if field.message_type is None else field.message_type.name
        repeated = "repeated " if field.is_repeated else ""
        yield f"{name}.{field.number}: {repeated}{kind} {field.name}"
    for nested in message.nested_types:
        yield from _describe_message(nested, f"{name}.{nested.name}")


@pytest.mark.parametrize("protocol", range(OLDEST_PROTOCOL, PROTOCOL_VERSION + 1))
def test_messages_of_a_protocol_that_is_spoken_keep_their_fields(protocol: int) -> None:
    path = FOLDER / f"protocol_{protocol}.txt"
    present = list(_describe())
    if os.environ.get("UPDATE_GOLDEN") and protocol == PROTOCOL_VERSION:
        path.write_text("".join(f"{line}\n" for line in present), encoding="utf-8")
    missing = set(path.read_text(encoding="utf-8").splitlines()) - set(present)
    assert not missing, f"protocol {protocol} has these, and a peer that speaks it needs them"


def test_there_is_a_file_for_every_protocol_that_is_spoken() -> None:
    names = {path.name for path in FOLDER.glob("protocol_*.txt")}
    assert names == {f"protocol_{number}.txt" for number in range(OLDEST_PROTOCOL, PROTOCOL_VERSION + 1)}
