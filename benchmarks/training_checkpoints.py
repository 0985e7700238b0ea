"""The cost of checkpoints in a training run: the rate with one every 100 steps, and with one at the end.

    python -m benchmarks.training_checkpoints [MODEL ...] [--steps N] [--rounds N]

Example programs train on a CS system on the same machine, so that what writes a checkpoint also takes time of
the cores that compute. Both runs of a round follow each other.
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

import yaml

from benchmarks.fc_mnist import cs_system
from benchmarks.harness import Row, interleave, ratio_to_best, table

ROOT = Path(__file__).resolve().parent.parent
MODELS = ("fc_mnist/tf", "bert/tf", "fc_mnist/pytorch", "bert/pytorch")
_PARAMS = {"fc_mnist": "params_fc_mnist", "bert": "params_bert_tiny"}
STEPS = 2000
ROUNDS = 5
EVERY = 100
MIN_RATIO = 0.95


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
    ours, other = (f"{statistics.median(rates):,.0f} samples/s" for rates in figures.values())
    name = f"training {model}, a checkpoint every {EVERY} steps"
    return Row(name, ours, f"one at the end {other}", ratio, f"≥ {MIN_RATIO}", ratio >= MIN_RATIO)


def _rate(address: str, model: str, steps: int, every: int) -> float:
    """Samples per second of a training run."""
    folder, framework = model.split("/")
    program = ROOT / "models" / model
    with tempfile.TemporaryDirectory() as directory:
        params = yaml.safe_load((program / "configs" / f"{_PARAMS[folder]}.yaml").read_text())
        names = ("log_steps", "checkpoint_steps") if framework == "pytorch" else (
            "log_step_count_steps", "save_checkpoints_steps"
        )  # fmt: skip
        params["runconfig"] |= {"max_steps": steps, names[0]: steps, names[1]: every}
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
