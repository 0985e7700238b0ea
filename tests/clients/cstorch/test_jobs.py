"""A PyTorch program as users start it: directly, by csrun_wse, with workers that it starts itself."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.processes import wait_until
from tests.systems import RunningSystem

ROOT = Path(__file__).parents[3]
PROGRAM = str(Path(__file__).parent / "programs" / "digits.py")
STEPS = 40
LIMIT_S = 120.0

Results = dict[str, str]


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> tuple[Results, str, Path]:
    """Results of an unbroken run without launcher and system, its output and its folder."""
    folder = tmp_path_factory.mktemp("alone")
    job = start(folder, [sys.executable, PROGRAM, f"--steps={STEPS}"])
    output = finish(job, folder)
    assert job.returncode == 0, output
    return results(output), output, folder


def start(folder: Path, command: list[str]) -> subprocess.Popen[bytes]:
    """Starts a command; its output goes into a file of the folder."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    with (folder / "output.txt").open("wb") as output:
        return subprocess.Popen(command, cwd=folder, env=environment, stdout=output, stderr=output)


def finish(job: subprocess.Popen[bytes], folder: Path) -> str:
    """All that a command has written."""
    job.wait(LIMIT_S)
    return (folder / "output.txt").read_text()


def results(output: str) -> Results:
    """Parse the steps and the accuracy that the program printed."""
    return dict(re.findall(r"\| (step \d+|accuracy) (?:loss )?(\S+)$", output, re.M))


def wait_for(found: Callable[[], bool], job: subprocess.Popen[bytes]) -> None:
    def is_found() -> bool:
        assert job.poll() is None, "the job has ended"
        return found()

    wait_until(is_found, timeout_s=LIMIT_S)


def test_a_program_without_a_launcher_has_its_own_system_and_leaves_its_files(
    alone: tuple[Results, str, Path],
) -> None:
    found, output, folder = alone
    assert len(found) == STEPS + 1
    assert "training on an embedded simulated CS system (no address: pass --cs_ip" in output
    assert f"Training finished with {STEPS * 16} samples" in output
    summary = json.loads((folder / "model_dir" / "run_summary.json").read_text())
    assert (summary["status"], summary["last_step"], summary["workers"]) == ("completed", STEPS, 1)
    assert json.loads((folder / "model_dir" / "performance.json").read_text())["total_samples"] == STEPS * 16
    assert (folder / "model_dir" / "fabric.json").is_file()
    assert "stopped" in (folder / "model_dir" / "cs_system.log").read_text()


def test_killed_chief_and_killed_worker_change_no_bit(
    system: RunningSystem, alone: tuple[Results, str, Path], tmp_path: Path
) -> None:
    """The job runs by csrun_wse until its chief is killed, then with own workers, of which one is killed too.

    The number of workers differs as well.
    """
    expected = alone[0]
    flags = [f"--cs_ip={system.address}", "--delay=0.005"]
    launcher = [str(ROOT / "bin" / "csrun_wse"), "--total-nodes=1", "--tasks-per-node=2", "--log-dir=logs"]
    job = start(tmp_path, [*launcher, "python", PROGRAM, "--steps=100000", *flags])
    checkpoint = tmp_path / "model_dir" / "checkpoint_20.mdl"
    wait_for(checkpoint.exists, job)
    tasks = json.loads((tmp_path / "logs" / "job.json").read_text())["tasks"]
    os.kill(next(task["pid"] for task in tasks if task["role"] == "chief"), signal.SIGKILL)
    output = finish(job, tmp_path)
    assert job.returncode == 128 + signal.SIGKILL
    before = results(output)
    assert {name: before[name] for name in expected if name in before} == {
        name: value for name, value in expected.items() if name in before
    }
    assert "step 20" in before

    path = f"--checkpoint_path={checkpoint}"
    job = start(tmp_path, [sys.executable, PROGRAM, f"--steps={STEPS}", *flags, path, "--workers=2"])
    wait_for(lambda: "| step 25 " in (tmp_path / "output.txt").read_text(), job)
    os.kill(serving_process(tmp_path), signal.SIGKILL)
    output = finish(job, tmp_path)
    assert job.returncode == 0, output
    assert "was killed by SIGKILL" in output
    assert "restart 1 of 3" in output
    assert results(output) == {f"step {i}": expected[f"step {i}"] for i in range(21, STEPS + 1)} | {
        "accuracy": expected["accuracy"]
    }
    assert not list((tmp_path / "model_dir").glob(".*"))


def serving_process(folder: Path) -> int:
    """A worker that the program of this folder has started."""
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            words = (entry / "cmdline").read_bytes().split(b"\0")
            if words[3:4] == [b"cstorch"] and bytes(folder) in words[4]:
                return int(entry.name)
    raise AssertionError("no worker exists")


def test_an_input_that_raises_in_a_worker_shows_its_traceback(system: RunningSystem, tmp_path: Path) -> None:
    """Record 100 is in no first batch, which the chief reads itself."""
    flags = [f"--cs_ip={system.address}", f"--steps={STEPS}", "--broken=100"]
    job = start(tmp_path, [sys.executable, PROGRAM, *flags])
    output = finish(job, tmp_path)
    assert job.returncode == 1, output
    chief = "\n".join(line for line in output.splitlines() if not re.match(r"worker \d|csrun_wse|    ", line))
    assert re.search(r"digits\.py\", line \d+, in __getitem__", chief), output
    assert "ValueError: record 100 is broken" in chief


INPUT = """
import absent_augmentations
import cerebras.pytorch as cstorch
import torch

def batches():
    if not cstorch.use_cs():
        raise RuntimeError("use_worker_cache is for CS systems")
    half = cstorch.amp.get_floating_point_dtype()
    records = torch.utils.data.TensorDataset((torch.arange(64.0).reshape(16, 4) / 64).to(half))
    return torch.utils.data.DataLoader(records, batch_size=4)
"""
TRAINING = """
import sys
import cerebras.pytorch as cstorch
import torch
from modelzoo.inputs import batches

cstorch.configure(mgmt_address=sys.argv[1], num_workers_per_csx=1)
cstorch.amp.set_half_dtype("bfloat16")
cstorch.amp.enable_mixed_precision()
assert cstorch.amp.get_floating_point_dtype() is torch.bfloat16
model = torch.nn.Linear(4, 1)
compiled_model = cstorch.compile(model, backend="CSX")
optimizer = cstorch.optim.SGD(model.parameters(), lr=0.01, momentum=0.0)

@cstorch.compile_step
def training_step(batch):
    loss = compiled_model(batch[0]).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss

@cstorch.step_closure
def show(loss):
    print("| step", loss.item() > 0, flush=True)

for batch in cstorch.utils.data.DataLoader(batches, num_steps=3):
    show(training_step(batch))
"""


def test_the_programs_own_workers_import_its_modules(system: RunningSystem, tmp_path: Path) -> None:
    """The launchers' interpreter gives the Model Zoo placeholders for packages that are missing."""
    (tmp_path / "modelzoo").mkdir()
    (tmp_path / "modelzoo" / "inputs.py").write_text(INPUT)
    (tmp_path / "modelzoo" / "__init__.py").touch()
    (tmp_path / "run.py").write_text(TRAINING)
    job = start(tmp_path, [str(ROOT / "bin" / "csrun_cpu"), "python", "run.py", system.address])
    output = finish(job, tmp_path)
    assert job.returncode == 0, output
    assert output.count("| step True") == 3
