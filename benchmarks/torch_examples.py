"""PyTorch programs: the time to capture a large step, and the accuracy of the examples.

    python -m benchmarks.torch_examples

Captured is the training step of GPT-2 small (12 layers, AdamW, clipping, dynamic loss scale): from the call
of the step to the module that the compiler gets. The examples train as a user types it, on a CS system beside
them, and are evaluated on data that no training sees.
"""

from __future__ import annotations

import re
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from benchmarks.fc_mnist import cs_system
from benchmarks.harness import Row, table

ROOT = Path(__file__).resolve().parent.parent
ROUNDS = 3
CAPTURE_TARGET_S = 15.0
BATCH_SIZE = 8


@dataclass(frozen=True)
class Example:
    """An example and its required loss.

    Attributes:
        name: of the folder in `models`.
        params: of its parameter file.
        unit: of the loss.
        loss: the largest mean loss of the evaluation.
    """

    name: str
    params: str
    unit: str
    loss: float


EXAMPLES = (
    Example("fc_mnist", "params_fc_mnist.yaml", "nats per digit", 0.25),
    Example("resnet", "params_resnet_tiny.yaml", "nats per image, labels smoothed by 0.1", 0.45),
    Example("gpt2", "params_gpt2_mini.yaml", "nats per byte", 1.8),
    Example("bert", "params_bert_mini.yaml", "nats per hidden byte", 2.4),
)


def rows() -> list[Row]:
    """The capture, and every example."""
    return [capture_row(), *training_rows()]


def capture_row(params_file: str = "params_gpt2_small.yaml") -> Row:
    """Seconds until a training step of GPT-2 is a module."""
    import torch
    import yaml

    import cstorch
    from cgc.importers.aten import import_step
    from cstorch.program import Program
    from cstorch.tracing.device import DeviceTensor
    from cstorch.tracing.state import model_state
    from cstorch.tracing.step import trace
    from models.gpt2.pytorch.model import GPT2
    from models.gpt2.pytorch.run import Training

    params = yaml.safe_load((ROOT / "models/gpt2/pytorch/configs" / params_file).read_text())
    model = cstorch.compile(GPT2(params["model"]), "CSX")
    training = Training(model, params)
    ids = torch.zeros(BATCH_SIZE, params["train_input"]["max_sequence_length"], dtype=torch.int64)
    seconds, operations = [], 0
    for _ in range(ROUNDS):
        start = time.perf_counter()
        batch = [DeviceTensor(ids), DeviceTensor(ids)]
        traced = trace(lambda batch=batch: training.step(batch), batch, model_state(model), [model])
        import_step(traced.graph, mode="train", seed=0)
        seconds.append(time.perf_counter() - start)
        operations = len(traced.graph.nodes)
    Program.current().models.clear()
    median = statistics.median(seconds)
    name = f"capturing a training step in PyTorch, GPT-2 of {params_file}, {operations:,} operations"
    return Row(name, f"{median:.1f} s", "", None, f"< {CAPTURE_TARGET_S:g} s", median < CAPTURE_TARGET_S)


def training_rows() -> list[Row]:
    """The loss that every example reaches, and how long that takes."""
    with cs_system() as address:
        return [_train(example, address) for example in EXAMPLES]


def _train(example: Example, address: str) -> Row:
    with tempfile.TemporaryDirectory() as model_dir:
        start = time.perf_counter()
        _run(example, "train", address, model_dir)
        seconds = time.perf_counter() - start
        said = _run(example, "eval", address, model_dir)
    found = re.search(r"[Ll]oss[ =]*([0-9.]+)", said)
    if found is None:
        raise RuntimeError(f"the evaluation of {example.name} told no loss: {said}")
    loss = float(found.group(1))
    return Row(
        f"PyTorch, {example.name} with {example.params}: loss after the training",
        f"{loss:.3f} {example.unit}, {seconds:.0f} s",
        "",
        None,
        f"≤ {example.loss}",
        loss <= example.loss,
    )


def _run(example: Example, mode: str, address: str, model_dir: str) -> str:
    """Run the program, and return its output and log."""
    folder = ROOT / "models" / example.name / "pytorch"
    flags = (f"--mode={mode}", f"--cs_ip={address}", f"--model_dir={model_dir}")
    params = f"--params={folder / 'configs' / example.params}"
    done = subprocess.run(
        [sys.executable, str(folder / "run.py"), params, *flags],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    said = done.stdout + done.stderr
    if done.returncode:
        raise RuntimeError(f"{folder / 'run.py'} failed with exit code {done.returncode}: {said}")
    return said


if __name__ == "__main__":
    print(table(rows()))
