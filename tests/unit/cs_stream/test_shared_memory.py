"""Batches in memory that a worker and the system share."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from cs_stream.batches import content_digest
from cs_stream.shared_memory import NotSharedError, SharedMemory
from tests.loopback import Loopback, numbered_input, take_numbered

SLOT_BYTES = 192
COUNT = 20


@pytest.fixture
def memory() -> Iterator[SharedMemory]:
    """Memory of the system with two slots."""
    created = SharedMemory.create(2, SLOT_BYTES)
    yield created
    created.close()


def fields(seq: int) -> list[memoryview]:
    """A batch of two fields, 100 and 5 bytes."""
    return [memoryview(bytearray([seq] * 100)), memoryview(bytearray([seq + 100] * 5))]


def open_descriptors() -> int:
    """How many descriptors this process has."""
    return sum(1 for _ in Path("/proc/self/fd").iterdir())


def test_a_slot_is_free_once_its_batch_is_copied(memory: SharedMemory) -> None:
    theirs = SharedMemory.open(memory.path, memory.token, SLOT_BYTES)
    try:
        for seq in range(2):
            assert theirs.has_room(seq)
            theirs.write(seq, fields(seq))
        assert not theirs.has_room(2)
        for seq in range(2):
            found = [memoryview(bytearray(100)), memoryview(bytearray(5))]
            assert memory.read(seq, found, has_digest=True) == content_digest(fields(seq))
            assert found == fields(seq)
            memory.count(seq)
            assert theirs.has_room(seq + 2)
            assert not theirs.has_room(seq + 3)
    finally:
        theirs.close()


def test_other_files_are_refused(memory: SharedMemory, tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_bytes(bytes(8192))
    with pytest.raises(NotSharedError, match="No such file"):
        SharedMemory.open(str(tmp_path / "missing"), memory.token, SLOT_BYTES)
    with pytest.raises(NotSharedError, match=r"Invalid argument|can change its size"):
        SharedMemory.open(str(file), memory.token, SLOT_BYTES)
    with pytest.raises(NotSharedError, match="another connection"):
        SharedMemory.open(memory.path, "0" * 32, SLOT_BYTES)
    with pytest.raises(NotSharedError, match="another connection"):
        SharedMemory.open(memory.path, memory.token, 1 << 20)


def test_a_peer_cannot_shrink_it(memory: SharedMemory) -> None:
    with pytest.raises(PermissionError):
        os.truncate(memory.path, 0)


def test_batches_come_through_it_and_nothing_remains(monkeypatch: pytest.MonkeyPatch) -> None:
    copied: list[int] = []
    read = SharedMemory.read

    def count(self: SharedMemory, seq: int, fields: Sequence[memoryview], has_digest: bool) -> bytes:
        copied.append(seq)
        return read(self, seq, fields, has_digest)

    monkeypatch.setattr(SharedMemory, "read", count)
    before = open_descriptors()
    with Loopback(num_workers=2, shares_memory=True) as run:
        futures = [
            run.start(run.sender(worker), numbered_input(run.spec.layout, worker, 2, COUNT))
            for worker in range(2)
        ]
        assert take_numbered(run.ring) == list(range(2 * COUNT))
        run.ring.close()
        assert [future.result(timeout=60).end for future in futures] == ["bye", "bye"]
    assert sorted(copied) == sorted([*range(COUNT), *range(COUNT)])
    assert open_descriptors() <= before


def test_the_socket_carries_the_batches_of_a_worker_that_cannot_open_it(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(SharedMemory, "path", "/proc/self/no such descriptor")
    caplog.set_level("INFO")
    with Loopback(shares_memory=True) as run:
        future = run.start(run.sender(0), numbered_input(run.spec.layout, 0, 1, COUNT))
        assert take_numbered(run.ring) == list(range(COUNT))
        run.ring.close()
        assert future.result(timeout=60).end == "bye"
    assert "batches are sent through the socket" in caplog.text


def test_a_worker_that_reconnects_gets_new_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a worker that was stopped writes later is then not in the memory that is read."""
    tokens: list[str] = []
    open_memory = SharedMemory.open

    def record(path: str, token: str, slot_bytes: int) -> SharedMemory:
        tokens.append(token)
        return open_memory(path, token, slot_bytes)

    monkeypatch.setattr(SharedMemory, "open", record)
    with Loopback(shares_memory=True) as run:
        sender = run.sender(0)
        future = run.start(sender, numbered_input(run.spec.layout, 0, 1, COUNT))
        assert take_numbered(run.ring, count=5) == list(range(5))
        run.cut(0)
        assert take_numbered(run.ring) == list(range(5, COUNT))
        run.ring.close()
        assert future.result(timeout=60).reconnects == 1
    assert len(tokens) == len(set(tokens)) == 2
