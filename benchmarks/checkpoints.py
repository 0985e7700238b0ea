"""Saving and loading a checkpoint by `cstorch`, by PyTorch and by safetensors where it is installed.

    python -m benchmarks.checkpoints [--mib 500]

Weights of one size in float32, as of 40 layers. A save counts until the file is on the disk, whoever writes
it; a load counts until every element was read once, because ours and safetensors' map the file.
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

from benchmarks.harness import Row, interleave, medians_text, ratio_to_best, table

ROUNDS = 7
LAYERS = 40
Write = Callable[[dict[str, Any], Path], None]
Read = Callable[[Path], dict[str, Any]]


def rows(mib: int = 500) -> list[Row]:
    """One row for saving and one for loading, in MB/s."""
    import torch

    elements = mib * 2**20 // 4 // LAYERS
    weights = {f"layer{i}.weight": torch.randn(elements) for i in range(LAYERS)}
    megabytes = LAYERS * elements * 4 / 1e6
    with tempfile.TemporaryDirectory() as folder:
        contenders = _contenders()
        saves: dict[str, Callable[[], float]] = {}
        loads: dict[str, Callable[[], float]] = {}
        for name, (write, read) in contenders.items():
            path = Path(folder) / f"{name}.checkpoint"
            saves[name] = partial(_rate, megabytes, write, weights, path)
            loads[name] = partial(_rate, megabytes, _read_all, read, path)
        return [
            _row(f"checkpoint of {mib} MiB, saved", interleave(saves, ROUNDS)),
            _row(f"checkpoint of {mib} MiB, loaded", interleave(loads, ROUNDS)),
        ]


def _contenders() -> dict[str, tuple[Write, Read]]:
    import torch

    from cstorch import checkpoints

    found: dict[str, tuple[Write, Read]] = {
        "cstorch": (checkpoints.save, checkpoints.load),
        "torch": (_synced(torch.save), lambda path: torch.load(path, weights_only=True)),
    }
    try:
        from safetensors import torch as safetensors
    except ImportError:
        return found
    return {**found, "safetensors": (_synced(safetensors.save_file), safetensors.load_file)}


def _synced(write: Write) -> Write:
    def synced(weights: dict[str, Any], path: Path) -> None:
        write(weights, path)
        with path.open("rb") as file:
            os.fsync(file.fileno())

    return synced


def _read_all(read: Read, path: Path) -> None:
    for tensor in read(path).values():
        tensor.sum()


def _rate(megabytes: float, call: Callable[..., None], *args: Any) -> float:
    began = time.monotonic()
    call(*args)
    return megabytes / (time.monotonic() - began)


def _row(name: str, figures: dict[str, list[float]]) -> Row:
    ratio = ratio_to_best(figures, "cstorch")
    ours = f"{statistics.median(figures['cstorch']):,.0f} MB/s"
    return Row(name, ours, medians_text(figures, "cstorch", "MB/s"), ratio, "≥ 1", ratio >= 1)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mib", type=int, default=500, help="size of the weights in MiB")
    print(table(rows(parser.parse_args().mib)))
