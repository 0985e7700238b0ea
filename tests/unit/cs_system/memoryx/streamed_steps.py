"""Steps in layers, ready for an engine."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

from cgc.cirh.interface import step_interface
from cgc.layers.streamed import streamed_step
from cgc.lowering.interpret import export_step
from cgc.passes.pipeline import run_pipeline
from cs_system.memoryx.config import MemoryxAddress, MemoryxConfig, parse_memoryx_address
from cs_system.memoryx.engine import StreamedEngine
from cs_toolkit.layered_step import Schedule
from cs_toolkit.step import CompiledStep, Executable
from tests.programs.pytorch.residual_stack import Stack, Step, sgd_step, updated_step
from tests.unit.cgc.layers.cut_steps import Run, State, run_whole

VOCABULARY, STEPS = 12, 20
WIDTH = 384


@dataclass(frozen=True)
class Streamed:
    """A step in layers, ready for an engine; with a state, batches, and the results of the whole step."""

    compiled: CompiledStep
    schedule: Schedule
    data: dict[str, bytes]
    state: State
    batches: list[list[np.ndarray]]
    whole: Run

    def engine(self, place: MemoryxConfig) -> StreamedEngine:
        return StreamedEngine(self.compiled, self.schedule, self.data, place)


def token_loss(model: nn.Module, ids: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(model(ids).reshape(-1, VOCABULARY), labels.reshape(-1))


def streamed(step: Step, micro_batches: int = 1) -> Streamed:
    layers = streamed_step(step.module, micro_batches=micro_batches)
    interface = step_interface(step.module)
    executables, data = [], {}
    for number, module in enumerate(layers.modules):
        name, part = f"function_{number}", step_interface(module)
        data[name] = export_step(module, part)
        executables.append(Executable(name, part, "", len(data[name])))
    compiled = CompiledStep(
        "0" * 64, "cs2", "weight_streaming", interface, tuple(executables), layers.schedule.to_json()
    )
    state = {spec.name: step.state[spec.name].astype(spec.dtype) for spec in interface.state}
    whole = run_whole(step.module, step.state, step.batches)
    return Streamed(compiled, layers.schedule, data, state, step.batches, whole)


def stack_of_three(micro_batches: int = 1) -> Streamed:
    """Three blocks with dropout between a table and a head that share it; gradients are clipped."""
    torch.manual_seed(3)
    batches = [tuple(torch.randint(0, VOCABULARY, (2, 4, 6))) for _ in range(STEPS)]
    step = sgd_step(Stack(3), token_loss, *batches)  # type: ignore[arg-type]
    return streamed(step, micro_batches)


def wide_network() -> Streamed:
    """Weights of more than a piece of the update, under a norm for each element and clipping."""
    torch.manual_seed(4)
    model = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.Linear(WIDTH, WIDTH))
    batches = [(torch.randn(4, WIDTH), torch.randn(4, WIDTH)) for _ in range(6)]
    step = updated_step(
        model,
        lambda model, x, y: F.mse_loss(model(x), y),
        lambda weight, gradient, scale: weight - scale * gradient / (torch.sqrt(gradient * gradient) + 0.1),
        *batches,
    )
    run_pipeline(step.module)
    return streamed(step)


@contextmanager
def running_memoryx(directory: Path, *options: str) -> Iterator[tuple[subprocess.Popen[str], MemoryxAddress]]:
    """A process of MemoryX, and where it listens."""
    command = [sys.executable, "-m", "cs_system", "memoryx", "serve", "--port=0", *options]
    process = subprocess.Popen([*command, f"--memoryx-dir={directory}"], stderr=subprocess.PIPE, text=True)
    try:
        assert process.stderr is not None
        line = process.stderr.readline()
        # A full pipe would block it after some hundred jobs.
        reading = threading.Thread(target=process.stderr.read, daemon=True)
        reading.start()
        yield process, parse_memoryx_address(line.partition("--memoryx=")[2].partition(",")[0])
        process.kill()
        reading.join()
    finally:
        process.kill()
        process.wait()
        assert process.stderr is not None
        process.stderr.close()
