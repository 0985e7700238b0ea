"""Saving and loading a checkpoint by `cstorch`, by PyTorch and by safetensors.

    python -m benchmarks.checkpoints [--mib 500]

Weights of one size in float32, as of 40 layers. A save writes a file that was not there, as programs do that
number their checkpoints: in place of an older one PyTorch gets that one's memory, and ours keeps it until the
new one is whole. It counts until the file is on the disk, whoever writes it. A load counts until every
element was read once, because ours and safetensors' map the file.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.harness import Row, interleave, ratio_to_best, table

ROUNDS = 7
LAYERS = 40
Write = Callable[[dict[str, Any], Path], None]
Read = Callable[[Path], dict[str, Any]]


def rows(mib: int = 500) -> list[Row]:
    """One row for saving and one for loading, in GB/s."""
    import torch

    elements = mib * 2**20 // 4 // LAYERS
    weights = {f"layer{i}.weight": torch.randn(elements) for i in range(LAYERS)}
    gigabytes = LAYERS * elements * 4 / 1e9
    with tempfile.TemporaryDirectory() as folder:
        contenders = _contenders()
        saves: dict[str, Callable[[], float]] = {}
        loads: dict[str, Callable[[], float]] = {}
        for name, (write, read) in contenders.items():
            path = Path(folder) / f"{name}.checkpoint"
            saves[name] = partial(_save_rate, gigabytes, write, weights, path)
            loads[name] = partial(_rate, gigabytes, _read_all, read, path)
        return [
            _row(f"checkpoint of {mib} MiB, saved", interleave(saves, ROUNDS)),
            _row(f"checkpoint of {mib} MiB, loaded", interleave(loads, ROUNDS)),
        ]


def _contenders() -> dict[str, tuple[Write, Read]]:
    import torch
    from safetensors import torch as safetensors

    from cstorch import checkpoints

    return {
        "cstorch": (checkpoints.save, checkpoints.load),
        "torch": (_synced(torch.save), lambda path: torch.load(path, weights_only=True)),
        "safetensors": (_synced(safetensors.save_file), safetensors.load_file),
    }


def _synced(write: Write) -> Write:
    def synced(weights: dict[str, Any], path: Path) -> None:
        write(weights, path)
        with path.open("rb") as file:
            os.fsync(file.fileno())

    return synced


def _read_all(read: Read, path: Path) -> None:
    for tensor in read(path).values():
        tensor.sum()


def _save_rate(gigabytes: float, write: Write, weights: dict[str, Any], path: Path) -> float:
    path.unlink(missing_ok=True)
    return _rate(gigabytes, write, weights, path)


def _rate(gigabytes: float, call: Callable[..., None], *args: Any) -> float:
    began = time.monotonic()
    call(*args)
    return gigabytes / (time.monotonic() - began)


def _row(name: str, figures: dict[str, list[float]]) -> Row:
    ratio = ratio_to_best(figures, "cstorch")
    ours, *others = (f"{name} {statistics.median(rates):.2f} GB/s" for name, rates in figures.items())
    return Row(name, ours, ", ".join(others), ratio, "≥ 1", ratio >= 1)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mib", type=int, default=500, help="size of the weights in MiB")
    print(table(rows(parser.parse_args().mib)))
