"""Saving and loading a checkpoint by `cstorch`, by PyTorch and by safetensors.

    python -m benchmarks.checkpoints [--mib 500] [--training-mib 1400]

Two in float32: few large weights, as of 40 layers, and the state of a training, which is a GPT of 12 layers
with AdamW: 740 tensors, vectors and scalars among them, at the size of GPT-2 small. A save writes a file that
did not exist, as programs do that number their checkpoints: overwriting an older one, PyTorch reuses its
memory, and ours keeps it until the new one is complete. It is timed until the file is on the disk. A load is
timed until every element was read once, because ours and safetensors' map the file. The ratio is
to PyTorch, which saves numbers and nests too; safetensors, which saves only tensors, is shown for comparison.
"""

from __future__ import annotations

import argparse
import math
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
Weights = dict[str, Any]
Write = Callable[[Weights, Path], None]
Read = Callable[[Path], Weights]


def rows(mib: int = 500, training_mib: int = 1400) -> list[Row]:
    """A row for saving and one for loading of each checkpoint, in GB/s."""
    return [
        *_measure(f"checkpoint of {mib} MiB in {LAYERS} tensors", _large(mib)),
        *_measure(f"checkpoint of {training_mib} MiB, GPT with AdamW", _training(training_mib)),
    ]


def _large(mib: int) -> Weights:
    import torch

    elements = mib * 2**20 // 4 // LAYERS
    return {f"layer{i}.weight": torch.randn(elements) for i in range(LAYERS)}


def _training(mib: int) -> Weights:
    """Parameters of a GPT with moments and powers of the betas; a vocabulary of 32 times its width."""
    import torch

    layer = ((3, 1), (3,), (1, 1), (1,), (4, 1), (4,), (1, 4), (1,), (1,), (1,), (1,), (1,))
    shapes = {f"h.{i}.{j}": shape for i in range(12) for j, shape in enumerate(layer)}
    shapes |= {"wte": (32, 1), "wpe": (1, 1), "ln_f.weight": (1,), "ln_f.bias": (1,)}
    squares = sum(math.prod(shape) for shape in shapes.values() if len(shape) == 2)
    width = math.isqrt(mib * 2**20 // 4 // 3 // squares)
    found: Weights = {}
    for number, (name, shape) in enumerate(shapes.items()):
        sizes = [width * factor for factor in shape]
        state = f"optimizer.state.{number}"
        for key in (f"model.{name}.weight", f"{state}.exp_avg", f"{state}.exp_avg_sq"):
            found[key] = torch.randn(sizes)
        for key in ("beta1_power", "beta2_power"):
            found[f"{state}.{key}"] = torch.ones(())
    return found


def _measure(name: str, weights: Weights) -> list[Row]:
    gigabytes = sum(tensor.nbytes for tensor in weights.values()) / 1e9
    with tempfile.TemporaryDirectory() as folder:
        saves: dict[str, Callable[[], float]] = {}
        loads: dict[str, Callable[[], float]] = {}
        for who, (write, read) in _contenders().items():
            path = Path(folder) / f"{who}.checkpoint"
            saves[who] = partial(_save_rate, gigabytes, write, weights, path)
            loads[who] = partial(_rate, gigabytes, _read_all, read, path)
        return [
            _row(f"{name}, saved", interleave(saves, ROUNDS)),
            _row(f"{name}, loaded", interleave(loads, ROUNDS)),
        ]


def _contenders() -> dict[str, tuple[Write, Read]]:
    import torch
    from safetensors import torch as safetensors

    from cstorch import checkpoints

    return {
        "cstorch": (checkpoints.save, checkpoints.load),
        "torch": (_sync_after(torch.save), lambda path: torch.load(path, weights_only=True)),
        "safetensors": (_sync_after(safetensors.save_file), safetensors.load_file),
    }


def _sync_after(write: Write) -> Write:
    def synced(weights: Weights, path: Path) -> None:
        write(weights, path)
        with path.open("rb") as file:
            os.fsync(file.fileno())

    return synced


def _read_all(read: Read, path: Path) -> None:
    for tensor in read(path).values():
        tensor.sum()


def _save_rate(gigabytes: float, write: Write, weights: Weights, path: Path) -> float:
    path.unlink(missing_ok=True)
    return _rate(gigabytes, write, weights, path)


def _rate(gigabytes: float, call: Callable[..., None], *args: Any) -> float:
    began = time.monotonic()
    call(*args)
    return gigabytes / (time.monotonic() - began)


def _row(name: str, figures: dict[str, list[float]]) -> Row:
    ratio = ratio_to_best({who: figures[who] for who in ("cstorch", "torch")}, "cstorch")
    ours, *others = (f"{who} {statistics.median(rates):.2f} GB/s" for who, rates in figures.items())
    return Row(name, ours, ", ".join(others), ratio, "≥ 1 x torch", ratio >= 1)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mib", type=int, default=500, help="size of the weights in MiB")
    parser.add_argument("--training-mib", type=int, default=1400, help="size of the state of a training")
    options = parser.parse_args()
    print(table(rows(options.mib, options.training_mib)))
