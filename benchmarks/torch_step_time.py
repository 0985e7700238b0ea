"""Time of a PyTorch training step: the compiled program in the engine against eager and torch.compile.

All train the same example network on the same batches in memory, with AdamW and clipping: ours as
a program of cstorch is compiled, PyTorch with its fused AdamW. One process on one core; the contenders take
turns, in rounds, and a ratio is the median over the rounds of our time over the better other one.

    python -m benchmarks.torch_step_time [NETWORK ...] [--rounds N]
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.engine_loop import aligned, stepping
from benchmarks.harness import Row, interleave
from benchmarks.step_time import CHUNK, OURS, WORST, Figures, Run, geometric_mean, ratio, timed

ROOT = Path(__file__).resolve().parent.parent
ROUNDS = 7
MEAN = 0.9
"""The largest geometric mean of the ratios."""

Changes = dict[str, dict[str, Any]]
_LAYERS = {"hidden_size": 256, "num_hidden_layers": 4, "filter_size": 1024, "max_position_embeddings": 128}
_TOKENS = {"batch_size": 8, "max_sequence_length": 128}


@dataclass(frozen=True)
class Case:
    """A network of the examples.

    Attributes:
        folder: in `models`.
        params_file: its parameters.
        changes: to groups of these.
    """

    folder: str
    params_file: str
    changes: Changes = field(default_factory=dict)

    def load(self) -> Workload:
        """The network and its batches."""
        import torch
        import yaml

        data, network = self._parts()
        path = ROOT / "models" / self.folder / "pytorch" / "configs" / f"{self.params_file}.yaml"
        params = yaml.safe_load(path.read_text())
        for group, values in self.changes.items():
            params[group].update(values)
        torch.manual_seed(1)
        model = network(params)
        batches: list[tuple[torch.Tensor, ...]] = []
        while len(batches) < CHUNK:
            batches += [tuple(batch) for batch in data(params)][: CHUNK - len(batches)]
        return Workload(model, batches)

    def _parts(self) -> tuple[Callable[..., Any], Callable[..., Any]]:
        """Import the example's input function and network, which returns the loss of a batch."""
        from importlib import import_module

        data = import_module(f"models.{self.folder}.pytorch.data").train_dataloader
        if self.folder == "gpt2":
            from tests.programs.pytorch.language_models import GPT2Loss

            return data, GPT2Loss
        module = import_module(f"models.{self.folder}.pytorch.model")
        return data, getattr(module, _NETWORKS[self.folder])


_NETWORKS = {"fc_mnist": "FcMnist", "resnet": "ResNet", "bert": "Bert"}


@dataclass(frozen=True)
class Workload:
    """The training workload: a module that returns the loss of a batch, and batches."""

    model: Any
    batches: list[tuple[Any, ...]]


CASES = {
    "mlp": Case("fc_mnist", "params_fc_mnist"),
    "cnn": Case("resnet", "params_resnet_tiny"),
    "gpt": Case("gpt2", "params_gpt2_tiny"),
    "bert": Case("bert", "params_bert_tiny"),
    "gpt_mid": Case(
        "gpt2", "params_gpt2_tiny", {"model": {**_LAYERS, "vocab_size": 8192}, "train_input": _TOKENS}
    ),
    "bert_mid": Case("bert", "params_bert_tiny", {"model": _LAYERS, "train_input": _TOKENS}),
}
"""By the names of the lines."""


def traced_step(workload: Workload) -> tuple[Any, dict[str, np.ndarray]]:
    """The training step as the compiler gets it, and the state that it begins with."""
    import copy

    from cgc.importers.aten import import_step
    from cs_toolkit.step import GLOBAL_STEP
    from cstorch.optim import AdamW
    from cstorch.tracing.device import DeviceTensor
    from cstorch.tracing.state import model_state, move_to_device
    from cstorch.tracing.step import trace
    from cstorch.tracing.values import to_array

    model = copy.deepcopy(workload.model)
    move_to_device(model)
    optimizer = AdamW(model.parameters(), lr=1e-3, weight_decay=0.01)
    batch = [DeviceTensor(tensor) for tensor in workload.batches[0]]
    traced = trace(lambda: _step(model, optimizer, tuple(batch)), batch, model_state(model), [model])
    traced.graph.outputs = {"loss": next(iter(traced.graph.outputs.values()))}
    module = import_step(traced.graph, mode="train", seed=1)
    values = {name: to_array(tensor.to_host()) for name, tensor in traced.state.items()}
    return module, {**values, GLOBAL_STEP: np.asarray(0, np.int64)}


def engine(workload: Workload) -> Run:
    """The compiled program as the CS system runs it."""
    from cgc.cirh.interface import step_interface
    from cgc.lowering.interpret import export_step
    from cgc.passes.pipeline import run_pipeline
    from cs_system.engine.pipelined import PipelinedEngine
    from cstorch.tracing.values import to_array

    module, state = traced_step(workload)
    run_pipeline(module)
    interface = step_interface(module)
    program = PipelinedEngine(export_step(module, interface), interface, CHUNK)
    program.put_state(state)
    columns = zip(*workload.batches, strict=True)
    chunk = tuple(aligned(np.stack([_narrow(to_array(x)) for x in column])) for column in columns)

    return stepping(program, chunk)


def _narrow(array: np.ndarray) -> np.ndarray:
    """Narrow integers as workers do: the device has 32 bits."""
    return array.astype(np.int32) if array.dtype == np.int64 else array


def _step(model: Any, optimizer: Any, batch: tuple[Any, ...]) -> Any:
    import torch

    loss = model(batch)
    optimizer.zero_grad()
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    return loss.detach()


def eager(workload: Workload, compiled: bool = False) -> Run:
    """PyTorch with its fused AdamW; with `compiled` forward and backward pass by torch.compile."""
    import copy

    import torch

    model = copy.deepcopy(workload.model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.01, fused=True)
    called = torch.compile(model) if compiled else model

    def run(steps: int) -> None:
        for number in range(steps):
            loss = called(workload.batches[number % CHUNK])
            optimizer.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()

    return run


CONTENDERS: dict[str, Callable[[Workload], Run]] = {
    OURS: engine,
    "eager": eager,
    "torch.compile": lambda workload: eager(workload, compiled=True),
}


def measured(case: Case, rounds: int) -> Figures:
    """Seconds of a step in each round, by contender."""
    workload = case.load()
    runs = {name: build(workload) for name, build in CONTENDERS.items()}
    for run in runs.values():
        run(CHUNK)
    return interleave({name: timed(run, []) for name, run in runs.items()}, rounds)


def on_one_core() -> None:
    """Keeps this process, and all threads that it will have, on one core."""
    import torch

    from cs_system.engine.machine import limit_threads

    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    torch.set_num_threads(1)
    limit_threads(1)


def rows() -> list[Row]:
    """Return a row for each network, and one for all; measured in a separate process."""
    command = [sys.executable, "-m", "benchmarks.torch_step_time", "--json"]
    done = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True)
    found: dict[str, Figures] = json.loads(done.stdout.splitlines()[-1])
    mean = geometric_mean([ratio(figures) for figures in found.values()])
    lines = [_row(name, figures) for name, figures in found.items()]
    name = f"PyTorch training step, geometric mean over {len(found)} networks"
    return [*lines, Row(name, "", "", mean, f"≤ {MEAN}", mean <= MEAN)]


def _row(name: str, figures: Figures) -> Row:
    medians = {who: f"{statistics.median(times) * 1e3:.2f} ms" for who, times in figures.items()}
    others = ", ".join(f"{who} {time}" for who, time in medians.items() if who != OURS)
    value = ratio(figures)
    return Row(f"PyTorch training step, {name}", medians[OURS], others, value, f"≤ {WORST}", value <= WORST)


def main() -> None:
    """Prints a line for each network."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("networks", nargs="*", metavar="NETWORK", help=f"all without; of {', '.join(CASES)}")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--json", action="store_true", help="the figures, on one line")
    options = parser.parse_args()
    if unknown := set(options.networks) - set(CASES):
        parser.error(f"unknown network {', '.join(sorted(unknown))}, expected one of {', '.join(CASES)}")
    on_one_core()
    found = {name: measured(CASES[name], options.rounds) for name in options.networks or CASES}
    if options.json:
        print(json.dumps(found))
        return
    for name, figures in found.items():
        medians = "  ".join(f"{who} {statistics.median(t) * 1e3:.3f} ms" for who, t in figures.items())
        print(f"{name:<10} {medians}  ours / best {ratio(figures):.2f}")
    print(f"geometric mean {geometric_mean([ratio(figures) for figures in found.values()]):.2f}")


if __name__ == "__main__":
    main()
