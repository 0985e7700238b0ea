"""Damaged and hostile HDF5 checkpoints end in an error, soon; none loads wrong values."""

from __future__ import annotations

import json
import logging
import os
import random
import re
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import hdf5plugin
import numpy as np
import pytest
import torch
from h5py import h5d, h5p, h5s, h5t, h5z

import cstorch.checkpoints as cp
from benchmarks.checkpoints import _training
from cstorch.checkpoints import reader as reader_module
from cstorch.checkpoints.checksums import Checksums
from cstorch.errors import CheckpointError

SEED = 35
SECONDS = 2.0


def _state() -> dict[str, Any]:
    torch.manual_seed(SEED)
    return {**_training(1), "epoch": 3, "types": (torch.float32, [1, 2.5]), "name": "tiny"}


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("saved") / "checkpoint_1.mdl"
    cp.save(_state(), path)
    return path


def _damage(content: bytes, kind: str, at: int, bit: int) -> bytes:
    damaged = bytearray(content)
    if kind == "flip":
        damaged[at] ^= 1 << bit
    elif kind == "page":
        at -= at % 4096
        damaged[at : at + 4096] = bytes(len(damaged[at : at + 4096]))
    elif kind == "cut":
        del damaged[at:]
    else:
        damaged += bytes(bit + 1)
    return bytes(damaged)


@pytest.mark.parametrize(("kind", "times"), [("flip", 150), ("page", 40), ("cut", 20), ("longer", 5)])
def test_damage_is_an_error_that_names_the_file(saved: Path, tmp_path: Path, kind: str, times: int) -> None:
    generator, content = random.Random(SEED), saved.read_bytes()
    path = tmp_path / saved.name
    for _ in range(times):
        damaged = _damage(content, kind, generator.randrange(len(content)), generator.randrange(8))
        if damaged == content:  # zeros were zeroed
            continue
        path.write_bytes(damaged)
        began = time.monotonic()
        with pytest.raises(CheckpointError, match=re.escape(str(path))) as caught:
            cp.load(path)
        assert time.monotonic() - began < SECONDS
        assert re.search("load an older|copy or save it again|check that the file", str(caught.value))


def test_damage_to_a_file_of_torch_is_noticed(tmp_path: Path) -> None:
    state = {f"w{number}": torch.randn(20, 20) for number in range(20)}
    path = tmp_path / "checkpoint_1.mdl"
    torch.save(state, path)
    generator, content = random.Random(SEED), path.read_bytes()
    refused = 0
    for _ in range(150):
        path.write_bytes(_damage(content, "flip", generator.randrange(len(content)), generator.randrange(8)))
        try:
            found = cp.load(path)
        except CheckpointError:
            refused += 1
        else:  # a byte that alignment leaves unused
            assert all(torch.equal(found[key], state[key]) for key in state)
    assert refused > 100


def test_a_file_of_torch_without_checksums_loads(tmp_path: Path) -> None:
    torch.serialization.set_crc32_options(False)
    try:
        torch.save({"w": torch.ones(3)}, tmp_path / "a.pt")
    finally:
        torch.serialization.set_crc32_options(True)
    assert cp.load(tmp_path / "a.pt")["w"].tolist() == [1, 1, 1]


def test_damage_to_elements_names_the_tensor(saved: Path, tmp_path: Path) -> None:
    path = tmp_path / saved.name
    with h5py.File(saved) as file:
        at = file["model.wte.weight"].id.get_offset() + 5
    path.write_bytes(_damage(saved.read_bytes(), "flip", at, 0))
    with pytest.raises(CheckpointError, match=r"the tensor model\.wte\.weight has changed"):
        cp.load(path)


def test_other_readers_read_the_values(saved: Path) -> None:
    with h5py.File(saved) as file:
        assert np.array_equal(file["model.wte.weight"], _state()["model.wte.weight"].numpy())


def test_a_deliberate_change_needs_the_mark_removed(saved: Path, tmp_path: Path) -> None:
    path = shutil.copy(saved, tmp_path / saved.name)
    with h5py.File(path, "r+") as file:
        file["model.wte.weight"][...] = 7
    with pytest.raises(CheckpointError, match=r"delete the attribute __checksums__"):
        cp.load(path)
    with h5py.File(path, "r+") as file:
        del file.attrs["__checksums__"]
    assert (cp.load(path)["model.wte.weight"] == 7).all()


def _without_checksums(saved: Path, path: Path) -> bytes:
    shutil.copy(saved, path)
    with h5py.File(path, "r+") as file:
        del file.attrs["__checksums__"]
    return path.read_bytes()


def test_a_file_without_checksums_loads_with_one_line_in_the_log(
    saved: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / saved.name
    _without_checksums(saved, path)
    with caplog.at_level(logging.INFO, "cstorch"):
        found = cp.load(path)
    assert torch.equal(found["model.wte.weight"], _state()["model.wte.weight"])
    assert [record.getMessage() for record in caplog.records] == [
        f"{path} has no checksums: an older release or another program wrote it; save it again to have "
        "damage noticed"
    ]


def test_zeroed_heaps_of_a_file_without_checksums_end(saved: Path, tmp_path: Path) -> None:
    """HDF5 itself never returns from reading a text of such a heap."""
    path = tmp_path / saved.name
    content = _without_checksums(saved, path)
    sizes = {
        match.start(): int.from_bytes(content[match.end() : match.end() + 8], "little")
        for match in re.finditer(b"GCOL\x01\0\0\0", content)
    }
    assert sizes
    for start, size in sizes.items():
        damaged = bytearray(content)
        damaged[start + size // 2 : start + size] = bytes(size - size // 2)
        path.write_bytes(damaged)
        began = time.monotonic()
        with pytest.raises(CheckpointError, match=re.escape(str(path))):
            cp.load(path)
        assert time.monotonic() - began < SECONDS


def _hostile(path: Path, change: Callable[[h5py.File], None]) -> None:
    cp.save({"x": torch.ones(4)}, path)
    with h5py.File(path, "r+") as file:
        del file.attrs["__checksums__"]
        del file["x"]
        change(file)


def _huge(file: h5py.File) -> None:
    file.create_dataset("x", (10**15,), "<f4", chunks=(1 << 20,))


def _huge_contiguous(file: h5py.File) -> None:
    file.create_dataset("x", (10**15,), "<f4")


def _external_elements(file: h5py.File) -> None:
    file.create_dataset("x", (4,), "<f4", external=[("/etc/passwd", 0, 16)])


def _external_link(file: h5py.File) -> None:
    file["x"] = h5py.ExternalLink("/dev/stdin", "/x")


def _soft_link(file: h5py.File) -> None:
    file["x"] = h5py.SoftLink("/y")


def _virtual(file: h5py.File) -> None:
    layout = h5py.VirtualLayout((4,), "<f4")
    layout[:] = h5py.VirtualSource("/etc/other.h5", "x", (4,))
    file.create_virtual_dataset("x", layout)


def _linked_to_itself(file: h5py.File) -> None:
    file.attrs["x.__metadata__"] = json.dumps({"x.__metadata__": {"__TYPE__": "LinkedObject", "key": "x"}})


def _deep(file: h5py.File) -> None:
    file.attrs["__spec__"] = json.dumps(["*", "[" * 100_000])


def _long_number(file: h5py.File) -> None:
    file.attrs["x.__metadata__"] = '{"x.__metadata__": {"__TYPE__": "ScalarSerializer", "scalar_value": ' + (
        "9" * 6000 + "}}"
    )


def _ends_the_process(file: h5py.File) -> None:
    """The filter SZ calls exit(0)."""
    data = file.create_dataset("x", (64,), "<f4", chunks=(64,), **hdf5plugin.SZ(absolute=0.1))
    data[...] = 1
    data.id.write_direct_chunk((0,), b"\xff" * 64, 0)


def _unknown_filter(file: h5py.File) -> None:
    stored = h5p.create(h5p.DATASET_CREATE)
    stored.set_chunk((4,))
    stored.set_filter(31999, h5z.FLAG_OPTIONAL, (0,))
    h5d.create(file.id, b"x", h5t.IEEE_F32LE, h5s.create_simple((4,)), dcpl=stored)


@pytest.mark.parametrize("change", [_ends_the_process, _unknown_filter])
def test_elements_of_other_filters_are_refused(tmp_path: Path, change: Callable[[h5py.File], None]) -> None:
    path = tmp_path / "checkpoint_1.mdl"
    _hostile(path, change)
    with pytest.raises(CheckpointError, match=r"compressed by filter \d+ .*, expected gzip, LZF or LZ4"):
        cp.load(path)


@pytest.mark.parametrize("options", [{"compression": "gzip", "shuffle": True}, hdf5plugin.LZ4()])
def test_elements_of_known_filters_are_read(tmp_path: Path, options: Any) -> None:
    path = tmp_path / "checkpoint_1.mdl"
    values = np.arange(64, dtype="<f4")
    _hostile(path, lambda file: file.create_dataset("x", data=values, fletcher32=True, **options))
    assert np.array_equal(cp.load(path)["x"], values)


def test_groups_nested_deep_are_refused_soon(tmp_path: Path) -> None:
    path = tmp_path / "old.mdl"
    _old_file(path)
    with h5py.File(path, "r+") as file:
        group = file
        for _ in range(500):
            group = group.create_group("g")
    with pytest.raises(CheckpointError, match="groups are nested more than 100 deep"):
        cp.load(path)


@pytest.mark.parametrize(
    "change",
    [
        _huge,
        _huge_contiguous,
        _external_elements,
        _external_link,
        _soft_link,
        _virtual,
        _linked_to_itself,
        _deep,
        _long_number,
    ],
)
def test_hostile_files_are_refused(tmp_path: Path, change: Callable[[h5py.File], None]) -> None:
    path = tmp_path / "checkpoint_1.mdl"
    _hostile(path, change)
    began = time.monotonic()
    with pytest.raises(CheckpointError, match=re.escape(str(path))):
        cp.load(path)
    assert time.monotonic() - began < SECONDS


def _old_file(path: Path) -> bytes:
    """Write a checkpoint of version 0.4, whose superblock has no checksum; return its content."""
    with h5py.File(path, "w", libver="earliest") as file:
        file.attrs["__version__"] = 0.4
        for name in ("a", "b"):
            file[name] = np.ones(3)
            file[name].attrs["__H5_TYPE__"] = "TorchTensorH5Type"
    return path.read_bytes()


def test_a_gigabyte_after_the_end_takes_no_time(tmp_path: Path) -> None:
    path = tmp_path / "old.mdl"
    content = _old_file(path)
    with path.open("r+b") as file:
        file.truncate(len(content) + (1 << 30))
    began_s = time.process_time()
    assert list(cp.load(path)) == ["a", "b"]
    assert time.process_time() - began_s < 0.5


def test_heaps_that_overlap_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "old.mdl"
    content = bytearray(_old_file(path))
    heap = b"GCOL\x01\0\0\0" + (1 << 30).to_bytes(8, "little") + (1).to_bytes(16, "little")
    size = 64 << 20
    content[40:48] = size.to_bytes(8, "little")  # the end of the file
    content += heap * 200_000
    path.write_bytes(content)
    with path.open("r+b") as file:
        file.truncate(size)
    began_s = time.process_time()
    with pytest.raises(CheckpointError, match="heaps of texts overlap"):
        cp.load(path)
    assert time.process_time() - began_s < SECONDS


def test_a_killed_run_leaves_no_part_of_a_checkpoint_for_the_next(tmp_path: Path) -> None:
    (tmp_path / ".checkpoint_7.mdl.4711-0123abcd").write_bytes(b"\x89HDF")
    cp.save({"a": 1}, tmp_path / "checkpoint_9.mdl")
    assert [path.name for path in tmp_path.iterdir()] == ["checkpoint_9.mdl"]


@pytest.mark.parametrize("moment", ["checked", "opened"])
@pytest.mark.parametrize("left", [0, 5000, 0.5, 0.999])
def test_a_file_that_is_truncated_during_a_load_is_refused(
    saved: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moment: str, left: float
) -> None:
    path = tmp_path / saved.name
    content = saved.read_bytes()
    path.write_bytes(content)

    def truncate() -> None:
        os.truncate(path, int(left * len(content)) if left < 1 else int(left))

    check, reader = Checksums.check, reader_module._Reader.read

    def check_and_truncate(checksums: Checksums, file: int) -> None:
        check(checksums, file)
        truncate()

    def truncate_and_read(self: Any) -> Any:
        truncate()
        return reader(self)

    if moment == "checked":
        monkeypatch.setattr(Checksums, "check", check_and_truncate)
    else:
        monkeypatch.setattr(reader_module._Reader, "read", truncate_and_read)
    with pytest.raises(CheckpointError, match=re.escape(f"{path} was changed while it was read")):
        cp.load(path)
