"""A second training run in a model_dir is refused, and a killed one leaves no lock."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from cs_runtime import training_lock as module
from cs_runtime.errors import ModelDirError, ModelDirInUseError
from cs_runtime.training_lock import FILE_NAME, training_lock
from tests.programs.fork_server import ForkServers

HOLD = """
import os, sys
from pathlib import Path
from cs_runtime.training_lock import training_lock
with training_lock(Path(sys.argv[1])):
    if len(sys.argv) > 2 and not os.fork():
        sys.stdin.read()
        os._exit(0)
    print("held", flush=True)
    sys.stdin.read()
"""


@contextmanager
def _holder(model_dir: Path, *words: str) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(model_dir), *words],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with process:
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        try:
            yield process
        finally:
            process.kill()


@pytest.fixture(autouse=True)
def _no_grace(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_GRACE_S", 0.2)


def test_a_second_run_is_refused_with_the_holder(tmp_path: Path) -> None:
    with _holder(tmp_path) as process, pytest.raises(ModelDirInUseError) as caught, training_lock(tmp_path):
        pass
    assert f"process {process.pid} on {os.uname().nodename}, since 20" in str(caught.value)
    assert caught.value.exit_code == 1


@pytest.mark.parametrize("words", [(), ("with a forked process",)])
def test_a_killed_run_leaves_no_lock(
    tmp_path: Path, words: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_GRACE_S", 10)
    with _holder(tmp_path, *words) as process:
        process.send_signal(signal.SIGKILL)
        process.wait()
        with training_lock(tmp_path):
            assert (tmp_path / FILE_NAME).exists()
    assert not list(tmp_path.iterdir())


def test_a_lock_that_is_a_symbolic_link_changes_no_other_file(tmp_path: Path) -> None:
    precious = tmp_path / "precious"
    precious.write_text("kept")
    (tmp_path / FILE_NAME).symlink_to(precious)
    with pytest.raises(ModelDirError, match="symbolic links"), training_lock(tmp_path):
        pass
    assert precious.read_text() == "kept"


def test_runs_of_one_process_may_contain_each_other(tmp_path: Path) -> None:
    with training_lock(tmp_path):
        with training_lock(tmp_path):
            pass
        assert (tmp_path / FILE_NAME).exists()
    assert not list(tmp_path.iterdir())


def test_a_file_system_without_locks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def unsupported(*_: object) -> None:
        raise OSError(37, "No locks available")

    monkeypatch.setattr("cs_runtime.training_lock.fcntl.lockf", unsupported)
    with _holder(tmp_path), training_lock(tmp_path):
        pass


TENSORFLOW = """
import sys
import numpy as np, tensorflow as tf
from estimator import CerebrasEstimator, CSRunConfig, EstimatorSpec
from estimator.errors import report_errors

def model_fn(features, labels, mode):
    loss = tf.reduce_mean((features * tf.compat.v1.get_variable("w", [2])) ** 2)
    optimizer = tf.compat.v1.train.GradientDescentOptimizer(0.1)
    step = tf.compat.v1.train.get_global_step()
    return EstimatorSpec(mode, loss=loss, train_op=optimizer.minimize(loss, global_step=step))

def input_fn(mode):
    data = tf.data.Dataset.from_tensor_slices((np.ones([4, 2], np.float32), np.zeros(4, np.int32)))
    return data.repeat().batch(2) if mode == "train" else data.batch(2)

estimator = CerebrasEstimator(model_fn, sys.argv[2], config=CSRunConfig())
with report_errors():
    if sys.argv[1] == "train":
        estimator.train(input_fn, steps=2, use_cs=False)
    else:
        estimator.evaluate(input_fn)
"""

PYTORCH = """
import sys
import torch, cstorch
from cs_runtime.exits import report_errors

with report_errors():
    model = torch.nn.Linear(2, 1)
    backend = cstorch.backend("CPU", artifact_dir=sys.argv[2])
    model = cstorch.compile(model, backend)
    optimizer = cstorch.optim.SGD(model.parameters(), lr=0.1)

    @cstorch.trace
    def step(batch):
        loss = model(batch[0]).sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss

    def data():
        samples = torch.utils.data.TensorDataset(torch.ones(8, 2))
        return torch.utils.data.DataLoader(samples, 2, drop_last=True)

    if sys.argv[1] == "train":
        model.train()
    else:
        model.eval()
    loader = cstorch.utils.data.DataLoader(data)
    for batch in cstorch.utils.data.DataExecutor(loader, num_steps=2):
        if sys.argv[1] == "train":
            step(batch)
"""


@pytest.mark.parametrize(("framework", "program"), [("tensorflow", TENSORFLOW), ("torch", PYTORCH)])
def test_programs(fork_servers: ForkServers, tmp_path: Path, framework: str, program: str) -> None:
    script = tmp_path / "program.py"
    script.write_text(program)

    def run(command: str) -> subprocess.CompletedProcess[str]:
        words = [*fork_servers.launcher(framework), "python", str(script), command, str(tmp_path / "model")]
        return subprocess.run(words, capture_output=True, text=True, cwd=tmp_path, check=False)

    assert run("train").returncode == 0
    with _holder(tmp_path / "model"):
        second = run("train")
        assert second.returncode == 1
        assert "is in use by another training run" in second.stderr
        assert run("eval").returncode == 0
    assert run("train").returncode == 0
