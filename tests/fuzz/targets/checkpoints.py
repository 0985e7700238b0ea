"""Checkpoints of PyTorch programs, also without checksums, whose damage the library of HDF5 must notice."""

from __future__ import annotations

import pickle
from collections import OrderedDict
from functools import cache

import h5py
import numpy as np
import torch
from safetensors.torch import save as save_safetensors

from cstorch.checkpoints import load
from cstorch.checkpoints.checksums import Checksums
from cstorch.checkpoints.encoding import NoDataError, decode_object, decode_tree, encode_tree
from cstorch.checkpoints.hdf5 import CHECKSUMS
from cstorch.checkpoints.writer import write
from cstorch.errors import CheckpointError
from tests.fuzz.target import Target, temporary_file

STATE = {
    "model": OrderedDict(
        {"fc.weight": torch.arange(12.0).reshape(3, 4), "fc.bias": torch.ones(3).bfloat16()}
    ),
    "optimizer": {"state": {0: {"step": torch.tensor(7)}}, "lr": [0.1, 1e-3]},
    "array": np.arange(4),
    "text": "hello",
    "none": None,
    "dtype": torch.float16,
    "size": torch.Size([2, 3]),
    "set": {1, 2},
}


@cache
def hdf5() -> bytes:
    """Write a checkpoint with checksums."""
    path = temporary_file(b"", "saved.mdl")
    path.unlink()
    write(STATE, path)
    return path.read_bytes()


@cache
def hdf5_without_checksums() -> bytes:
    """Write a checkpoint as older releases did, whose damage HDF5 itself has to notice."""
    path = temporary_file(hdf5(), "old.mdl")
    with path.open("rb") as file:
        checksums = Checksums.read(path, file.fileno())
    assert checksums is not None
    path.write_bytes(hdf5()[: checksums.size])
    with h5py.File(path, "r+") as file:
        del file.attrs[CHECKSUMS]
    return path.read_bytes()


def parse_checkpoint(data: bytes) -> None:
    found = load(temporary_file(data, "checkpoint.mdl"))
    # Elements are read when they are used.
    for leaf in torch.utils._pytree.tree_leaves(found):
        if isinstance(leaf, torch.Tensor) and leaf.numel() < 1 << 20:
            leaf.clone()


def parse_checksums(data: bytes) -> None:
    path = temporary_file(data, "checksums.mdl")
    with path.open("rb") as file:
        checksums = Checksums.read(path, file.fileno())
        if checksums is not None:
            checksums.check(file.fileno())


def parse_safetensors(data: bytes) -> None:
    load(temporary_file(data, "model.safetensors"))


def parse_tree(data: bytes) -> None:
    decode_tree(data.decode("utf-8", "replace"), lambda key: 1)


def torch_file() -> bytes:
    path = temporary_file(b"", "saved.pt")
    torch.save({"model": STATE["model"], "step": 7}, path)
    return path.read_bytes()


def pickles() -> list[bytes]:
    values = (
        torch.float16,
        np.arange(3),
        [1, (2.5, "a"), {"k": b"b"}, {1, 2}],
        OrderedDict(a=1),
        np.float32(1),
    )
    return [pickle.dumps(value, protocol) for value in values for protocol in (2, 4)]


TARGETS = [
    Target(
        "checkpoints.load",
        parse_checkpoint,
        (CheckpointError,),
        lambda: [hdf5_without_checksums(), hdf5(), torch_file()],
    ),
    Target("checkpoints.checksums", parse_checksums, (CheckpointError,), lambda: [hdf5()]),
    Target(
        "checkpoints.safetensors",
        parse_safetensors,
        (CheckpointError,),
        lambda: [save_safetensors({"a": torch.ones(3), "b": torch.zeros(2, 2)})],
    ),
    Target("checkpoints.objects", decode_object, (NoDataError,), pickles),
    # The reader wraps all errors of it.
    Target("checkpoints.tree", parse_tree, (Exception,), lambda: [encode_tree(STATE).encode()]),
]
