"""The cost of checkpoints in a training run: the rate with one every 100 steps, and with one at the end.

    python -m benchmarks.training_checkpoints [MODEL ...] [--steps N] [--rounds N]

Example programs train on a CS system on the same machine, so that what writes a checkpoint also takes time of
the cores that compute. Both runs of a round follow each other. Both log every 100 steps, because a program of
releases 1.x runs its body, which is recorded again, for each step that it logs or saves.

The other figures are of the same models in plain PyTorch and TensorFlow (`benchmarks.plain_training`): the
milliseconds of a checkpoint, and the share of the time that is left for the steps.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import yaml

from benchmarks.fc_mnist import cs_system
from benchmarks.harness import Row, interleave, ratio_to_best, table
from benchmarks.plain_training import PARAMS

ROOT = Path(__file__).resolve().parent.parent
MODELS = ("fc_mnist/tf", "bert/tf", "fc_mnist/pytorch", "bert/pytorch")
STEPS = 2000
ROUNDS = 5
EVERY = 100
MIN_RATIO = 0.95
PLAIN_STEPS = 500


def rows(models: Sequence[str] = MODELS, steps: int = STEPS, rounds: int = ROUNDS) -> list[Row]:
    """A row for each example program."""
    with cs_system() as address:
        return [_measure(address, model, steps, rounds) for model in models]


def _measure(address: str, model: str, steps: int, rounds: int) -> Row:
    _rate(address, model, steps, EVERY)  # XLA compiles the step
    with_checkpoints, without = f"every {EVERY}", "at the end"
    figures = interleave(
        {
            with_checkpoints: partial(_rate, address, model, steps, EVERY),
            without: partial(_rate, address, model, steps, steps),
        },
        rounds,
    )
    ratio = ratio_to_best(figures, with_checkpoints)
    ours, other = (statistics.median(rates) for rates in figures.values())
    cost_ms = 1000 * EVERY * _batch_size(model) * (1 / ours - 1 / other)
    plain_ms, plain_ratio = _measure_plain(model)
    framework = "PyTorch" if model.endswith("pytorch") else "TensorFlow"
    return Row(
        f"training {model}, a checkpoint every {EVERY} steps",
        f"{ours:,.0f} samples/s, {cost_ms:.0f} ms a checkpoint",
        f"one at the end {other:,.0f} samples/s; {framework} {plain_ms:.0f} ms ({plain_ratio:.2f})",
        ratio,
        f"≥ {MIN_RATIO}",
        ratio >= MIN_RATIO,
    )


def _measure_plain(model: str) -> tuple[float, float]:
    """Milliseconds of a checkpoint of the framework, and the share of the time that steps have."""
    command = [sys.executable, "-m", "benchmarks.plain_training", model, str(PLAIN_STEPS), str(EVERY)]
    out = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout
    seconds = json.loads(out.splitlines()[-1])
    count = PLAIN_STEPS // EVERY
    return (
        1000 * seconds["checkpoints"] / count,
        seconds["steps"] / (seconds["steps"] + seconds["checkpoints"]),
    )


def _batch_size(model: str) -> int:
    return int(_params(model)["train_input"]["batch_size"])


def _params(model: str) -> dict[str, Any]:
    file = ROOT / "models" / model / "configs" / f"{PARAMS[model.split('/')[0]]}.yaml"
    found: dict[str, Any] = yaml.safe_load(file.read_text())
    return found


def _rate(address: str, model: str, steps: int, every: int) -> float:
    """Samples per second of a training run."""
    framework = model.split("/")[1]
    program = ROOT / "models" / model
    with tempfile.TemporaryDirectory() as directory:
        params = _params(model)
        names = ("log_steps", "checkpoint_steps") if framework == "pytorch" else (
            "log_step_count_steps", "save_checkpoints_steps"
        )  # fmt: skip
        params["runconfig"] |= {"max_steps": steps, names[0]: EVERY, names[1]: every}
        file = Path(directory, "params.yaml")
        file.write_text(yaml.safe_dump(params))
        command = [
            sys.executable, str(program / "run.py"), *(["CSX"] if framework == "pytorch" else []),
            "--mode=train", f"--params={file}", f"--model_dir={directory}/model", f"--cs_ip={address}",
        ]  # fmt: skip
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        subprocess.run(command, cwd=directory, check=True, capture_output=True, env=environment)
        (summary,) = Path(directory, "model").rglob("run_summary.json")
        return float(json.loads(summary.read_text())["samples_per_sec"])


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("models", nargs="*", metavar="MODEL", help=f"of {', '.join(MODELS)}; default: all")
    parser.add_argument("--steps", type=int, default=STEPS, help="steps of a run")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="rounds of two runs")
    options = parser.parse_args()
    print(table(rows(options.models or MODELS, options.steps, options.rounds)))
