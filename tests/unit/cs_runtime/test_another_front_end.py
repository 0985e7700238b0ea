"""Another front end than `estimator` runs without TensorFlow."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from tests.systems import RunningSystem

PROGRAM = Path(__file__).parents[2] / "programs" / "numpy_program.py"
RATE = 0.01

Train = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def train(tmp_path: Path) -> Train:
    def run(cs_ip: str, steps: int, before: str = "pass") -> subprocess.CompletedProcess[str]:
        program = f"import runpy; {before}; runpy.run_path({str(PROGRAM)!r}, run_name='__main__')"
        words = [sys.executable, "-c", program, cs_ip, str(tmp_path / "model"), str(steps)]
        return subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False)

    return run


def expected_losses(steps: int) -> list[float]:
    """Least squares by gradient descent in NumPy, on the batches of the program."""
    weights, losses = np.zeros(4), []
    for position in range(steps):
        features = np.random.default_rng(position).standard_normal((8, 4)).astype(np.float32)
        error = features @ weights - features.sum(axis=1).round()
        losses.append(float(np.mean(error**2)))
        weights -= RATE * features.T @ error
    return losses


def test_it_trains_and_continues(system: RunningSystem, train: Train, tmp_path: Path) -> None:
    losses: dict[int, float] = {}
    for end, steps in ((4, 4), (9, 5)):
        done = train(system.address, steps)
        assert done.returncode == 0, done.stderr
        found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
        assert found["step"] == end
        losses |= {int(step): loss for step, loss in found["losses"].items()}
        assert {"cgc", "cs_runtime"} <= set(found["loaded"])
        assert not {"estimator", "keras", "tensorflow", "torch"} & set(found["loaded"])
    np.testing.assert_allclose([losses[step] for step in range(1, 10)], expected_losses(9), rtol=1e-5)
    assert "Loss for final step" in done.stderr
    model_dir = tmp_path / "model"
    assert yaml.safe_load((model_dir / "params.yaml").read_text()) == {"steps": 5, "rate": RATE}
    assert json.loads((model_dir / "performance.json").read_text())["total_samples"] == 5 * 8
    assert json.loads((model_dir / "run_summary.json").read_text())["last_step"] == 9


def test_checkpoints_during_steps_are_those_of_their_step(system: RunningSystem, tmp_path: Path) -> None:
    """The system that streams weights keeps the state of a checkpoint while the next steps run."""
    states: dict[str, list[dict[str, np.ndarray]]] = {}
    for execution in ("pipelined", "weight_streaming"):
        model_dir = tmp_path / execution
        words = [sys.executable, str(PROGRAM), system.address, str(model_dir), "60", execution, "7"]
        done = subprocess.run(words, capture_output=True, text=True, timeout=120, check=False)
        assert done.returncode == 0, done.stderr
        steps = sorted(int(path.stem.partition("-")[2]) for path in model_dir.glob("state-*.npz"))
        assert steps == [0, *range(7, 57, 7), 60]
        states[execution] = [dict(np.load(model_dir / f"state-{step}.npz")) for step in steps]
        assert [int(state["state.global_step"]) for state in states[execution]] == steps
    for pipelined, streamed in zip(*states.values(), strict=True):
        for name, value in pipelined.items():
            np.testing.assert_allclose(streamed[name], value, rtol=1e-5, atol=1e-6, err_msg=name)


def test_its_errors_are_messages(train: Train) -> None:
    done = train("127.0.0.1:1", 4)
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    assert done.stderr.splitlines()[-1].startswith("error: ")


def test_a_worker_that_ends_before_it_has_come_ends_the_run_with_its_error(
    system: RunningSystem, train: Train, tmp_path: Path
) -> None:
    """The system never hears of it, so it would wait for it for ten minutes."""
    done = train(system.address, 4, "from cs_stream.sender import Sender; Sender.run = None")
    assert done.returncode == 3, done.stderr
    assert "TypeError: 'NoneType' object is not callable" in done.stderr
    assert len(list(tmp_path.glob("crash-*.txt"))) == 1
