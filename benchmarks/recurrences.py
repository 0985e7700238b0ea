"""CPU seconds until unrolled recurrences train, with their time steps as loops and without.

Each network of PyTorch is traced with AdamW, compiled to an artifact and programmed into the engine of the CS
system, XLA's work included. The contenders take turns, in rounds; without loops XLA compiles every time step.

    python -m benchmarks.recurrences [NETWORK ...] [--steps N ...] [--rounds N]
"""

from __future__ import annotations

import argparse
import contextlib
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.harness import Row, interleave
from benchmarks.torch_step_time import Workload, traced_step

ROUNDS = 3
STEPS = (16, 32)
TARGET_S = 20.0
BATCH, WIDTH, LAYERS = 4, 16, 2


def _library(kind: str) -> Any:
    """Recurrent layers of torch: LSTM or GRU."""
    from torch import nn

    from tests.programs.pytorch.recurrent import RecurrentLayers

    class OfBatch(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = RecurrentLayers(getattr(nn, kind), WIDTH, LAYERS)

        def forward(self, batch: Any) -> Any:
            return self.layers(batch[0])

    return OfBatch()


def _rwkv() -> Any:
    """Blocks of time mixing and channel mixing, as those of RWKV."""
    import torch
    from torch import nn

    from tests.programs.pytorch.recurrent import mix_time

    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norms = nn.ModuleList(nn.LayerNorm(WIDTH) for _ in range(2))
            self.key, self.value, self.gate, self.out, self.channel_gate = (
                nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(5)
            )
            self.wide, self.narrow = (
                nn.Linear(WIDTH, 4 * WIDTH, bias=False),
                nn.Linear(4 * WIDTH, WIDTH, bias=False),
            )
            self.decay, self.first, self.mixed = (nn.Parameter(torch.rand(WIDTH)) for _ in range(3))

        def forward(self, x: Any) -> Any:
            h = self.norms[0](x)
            h = h * self.mixed + nn.functional.pad(h, (0, 0, 1, -1)) * (1 - self.mixed)
            mixed = mix_time(self.key(h), self.value(h), torch.exp(self.decay), self.first)
            x = x + self.out(torch.sigmoid(self.gate(h)) * mixed)
            h = self.norms[1](x)
            return x + torch.sigmoid(self.channel_gate(h)) * self.narrow(torch.relu(self.wide(h)).square())

    class Network(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.blocks = nn.Sequential(*(Block() for _ in range(LAYERS)))

        def forward(self, batch: Any) -> Any:
            return self.blocks(batch[0]).square().mean()

    return Network()


NETWORKS: dict[str, Callable[[], Any]] = {
    "LSTM": partial(_library, "LSTM"),
    "GRU": partial(_library, "GRU"),
    "RWKV": _rwkv,
}
"""By the names of the lines."""


def rows(
    names: Sequence[str] = tuple(NETWORKS), steps: Sequence[int] = STEPS, rounds: int = ROUNDS
) -> list[Row]:
    """A line for each network and number of time steps."""
    _cpu_seconds("GRU", 1)  # imports
    return [_row(name, count, rounds) for name in names for count in steps]


def _row(name: str, steps: int, rounds: int) -> Row:
    contenders = {
        "loops": partial(_cpu_seconds, name, steps),
        "unrolled": partial(_cpu_seconds, name, steps, is_unrolled=True),
    }
    figures = interleave(contenders, rounds)
    ours, unrolled = (statistics.median(figures[key]) for key in contenders)
    ratio = statistics.median(a / b for a, b in zip(*figures.values(), strict=True))
    title = f"{name} of {LAYERS} layers and {steps} time steps, until it trains"
    return Row(
        title,
        f"{ours:.1f} CPU s",
        f"unrolled {unrolled:.1f} CPU s",
        ratio,
        f"< {TARGET_S:g} CPU s",
        ours < TARGET_S,
    )


def _cpu_seconds(name: str, steps: int, is_unrolled: bool = False) -> float:
    """CPU seconds of this process to trace, compile and program a training step."""
    import torch

    from cgc.driver import compile_step
    from cgc.execution.compilation import CompileOptions
    from cgc.manifest import executable_file
    from cs_runtime.step_program import step_program
    from cs_system.engine.pipelined import PipelinedEngine
    from cs_toolkit.fabric import load_fabric

    torch.manual_seed(1)
    workload = Workload(NETWORKS[name](), [(torch.randn(BATCH, steps, WIDTH),)])
    begin = time.process_time()
    module, _ = traced_step(workload)
    interface = step_program(module, "train", BATCH, ["x"]).interface
    with (
        tempfile.TemporaryDirectory() as folder,
        _without_loops() if is_unrolled else contextlib.nullcontext(),
    ):
        compiled = compile_step(module, Path(folder), CompileOptions(), load_fabric(), interface=interface)
        executable = compiled.artifact.read(executable_file("step"))
    PipelinedEngine(executable, interface, 1).program()
    return time.process_time() - begin


@contextlib.contextmanager
def _without_loops() -> Iterator[None]:
    from cgc.lowering import interpret

    found = interpret.find_loops
    interpret.find_loops = lambda _step, _weights: []
    try:
        yield
    finally:
        interpret.find_loops = found


def main() -> None:
    """Entry point."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("networks", nargs="*", default=list(NETWORKS), metavar="NETWORK")
    parser.add_argument("--steps", type=int, nargs="+", default=list(STEPS), metavar="N")
    parser.add_argument("--rounds", type=int, default=ROUNDS, metavar="N")
    options = parser.parse_args()
    for row in rows(options.networks, options.steps, options.rounds):
        print(row.name, row.ours, row.others, f"{row.ratio:.2f}")


if __name__ == "__main__":
    main()
