"""The MemoryX process and its files: accepted models, refused ones, and its end."""

from __future__ import annotations

import os
import re
import resource
import signal
import socket
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from cs_system.commands import main
from cs_system.engine.machine import cpu_digest
from cs_system.errors import BadOptionError, MemoryxError, StorageFullError
from cs_system.memoryx.config import MemoryxConfig, parse_memoryx_address
from cs_system.memoryx.store import FileLayout, MappedTensors, SharedFiles, file_layouts
from cs_toolkit.layered_step import shards
from cs_toolkit.step import TensorSpec
from tests.processes import wait_until

from .streamed_steps import Streamed, running_memoryx

SPECS = {
    3: TensorSpec("3", "float32", (5, 7)),
    4: TensorSpec("4", "int64", ()),
    9: TensorSpec("9", "bool", (3,)),
}


@pytest.fixture
def limited_files() -> Iterator[None]:
    """No file of this process grows beyond 64 KiB, as on a disk that is full."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 16, hard))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_tensors_are_aligned_for_reading_in_place(tmp_path: Path) -> None:
    tensors = MappedTensors.in_directory(tmp_path, FileLayout(SPECS))
    tensors[3][...] = np.arange(35).reshape(5, 7)
    tensors[4][...] = -1
    tensors[9][...] = [True, False, True]
    assert [tensors[number].ctypes.data % 64 for number in SPECS] == [0, 0, 0]
    assert tensors[4].dtype == np.int32
    assert tensors[3].sum() == 35 * 17
    assert tensors[9].tolist() == [True, False, True]
    assert 3 in tensors
    assert 5 not in tensors


def test_tensors_of_a_column_are_contiguous_at_equal_offsets(tmp_path: Path) -> None:
    specs = {
        1: TensorSpec("1", "float32", (5, 7)),
        2: TensorSpec("2", "bfloat16", (5, 7)),
        3: TensorSpec("3", "bfloat16", (70,)),
        4: TensorSpec("4", "float32", (70,)),
    }
    tensors = MappedTensors.in_directory(tmp_path, FileLayout(specs, [(1, 4), (2, 3), (8, 9)]))
    for wide, narrow in ((1, 2), (4, 3)):
        tensors[wide][...] = wide
        tensors[narrow][...] = wide
    first, second = tensors.column((1, 4)), tensors.column((2, 3))
    assert first.dtype == np.float32
    assert first.shape == second.shape == (64 + 128,)
    assert (first[:35] == 1).all()
    assert (first[64 : 64 + 70] == 4).all()
    np.testing.assert_array_equal(first, second.astype(np.float32))


def test_a_wafer_maps_files_that_are_surely_the_same(stack: Streamed, tmp_path: Path) -> None:
    (shard,) = shards(stack.schedule, 1)
    state, arrived = (MappedTensors.in_directory(tmp_path, layout) for layout in file_layouts(shard))
    files = SharedFiles.of(state, arrived)
    model = SharedFiles.from_json(files.to_json()).map(shard)
    assert model is not None
    call = next(index for index, numbers in enumerate(shard.traffic.to_memory) if numbers)
    numbers = shard.traffic.to_memory[call]
    model.write_results(call, [np.full_like(arrived[number], 3) for number in numbers])
    assert all((arrived[number] == 3).all() for number in numbers)
    for other in (
        replace(files, boot="another machine"),
        replace(files, pid=1 << 22),
        replace(files, arrived=replace(files.arrived, inode=files.state.inode)),
    ):
        assert other.map(shard) is None


def test_a_full_disk_is_reported_before_the_first_step(tmp_path: Path, limited_files: None) -> None:
    specs = {0: TensorSpec("0", "float32", (1 << 20,))}
    with pytest.raises(StorageFullError, match=r"needs 4,194,304 bytes in .* --memoryx-dir"):
        MappedTensors.in_directory(tmp_path, FileLayout(specs))
    assert not list(tmp_path.iterdir())


def test_a_directory_that_cannot_be_written(tmp_path: Path) -> None:
    with pytest.raises(MemoryxError, match=r"cannot keep 320 bytes in .*/nowhere: No such file"):
        MappedTensors.in_directory(tmp_path / "nowhere", FileLayout(SPECS))


@pytest.mark.parametrize(
    ("text", "address"),
    [("10.0.0.5:9002", ("10.0.0.5", 9002)), ("[::1]:80", ("::1", 80)), ("node:1", ("node", 1))],
)
def test_addresses(text: str, address: tuple[str, int]) -> None:
    assert parse_memoryx_address(text)[:2] == address


@pytest.mark.parametrize("text", ["node", ":9002", "node:", "node:x", "node:0", "node:65536"])
def test_malformed_addresses(text: str) -> None:
    with pytest.raises(BadOptionError, match="expected HOST:PORT"):
        parse_memoryx_address(text)


def test_a_process_serves_models_in_sequence(stack: Streamed, tmp_path: Path) -> None:
    options = f"--xla-cache={tmp_path / 'xla'}", "--cache-size=1"
    with running_memoryx(tmp_path, *options) as (process, address):
        with socket.create_connection(address[:2]) as stranger:
            stranger.sendall(b"GET / HTTP/1.1\r\nHost: memoryx\r\n\r\n")
            assert b"not a CSMX stream" in stranger.recv(4096)
        old = tmp_path / "xla" / cpu_digest() / "old"
        old.write_bytes(bytes(1 << 20))
        os.utime(old, (0, 0))
        states = []
        for _ in range(2):
            engine = stack.engine(MemoryxConfig((address,), tmp_path))
            try:
                engine.put_state(stack.state)
                assert not engine.started_processes
                engine.dispatch([array[None] for array in stack.batches[0]], 0, 1).wait()
                states.append({n: a.tobytes() for n, a in engine.fetch_state().items()})
            finally:
                engine.free()
        assert states[0] == states[1]
        wait_until(lambda: not old.exists())  # the functions are stored, and the limit is kept
        assert list(old.parent.iterdir())
        process.send_signal(signal.SIGTERM)
        assert process.wait(10) == 0


@pytest.mark.parametrize("command", [["serve", "--port=0"], ["memoryx", "serve"]])
def test_a_missing_directory_is_refused_at_the_start(command: list[str], tmp_path: Path) -> None:
    done = CliRunner().invoke(main, [*command, f"--memoryx-dir={tmp_path / 'nowhere'}"])
    assert done.exit_code == 2
    assert re.search(r"--memoryx-dir.*nowhere' does not exist", done.output)
