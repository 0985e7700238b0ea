"""A group of CS systems that is a step of Slurm, a system on each node."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Any

import torch

import cerebras_pytorch.experimental as cstorch
from cs_runtime.embedded_system import read_ready_file
from tests.certificates import SiteCertificates
from tests.systems import running_system

PROGRAM = Path(__file__).parents[1] / "clients" / "cstorch" / "programs" / "digits.py"
LIMIT_S = 60.0
STEP = ("srun", "--nodes=2", "--ntasks-per-node=1")
SERVE = ("serve", "--num-csx=2", "--host=0.0.0.0", "--advertise=127.0.0.1", "--port=0")


def words(address: str, steps: int, *more: str) -> tuple[str, ...]:
    flags = (f"--steps={steps}", "--num_csx=2", f"--cs_ip={address}", *more)
    return ("--alloc-node=False", "python", str(PROGRAM), *flags)


def weights(folder: Path) -> dict[str, torch.Tensor]:
    checkpoint: Any = cstorch.load(folder / "model_dir" / "checkpoint_10.mdl")
    return {name: torch.as_tensor(value) for name, value in checkpoint["model"].items()}


def test_a_group_of_two_nodes(cluster: Any, start: Any, run: Any, wait: Any, tmp_path: Path) -> None:
    """It trains to the bits of one machine; a lost system is named; the step ends and leaves nothing.

    All connections except the collectives use TLS.
    """
    site = SiteCertificates(tmp_path / "site")
    env = {"CS_CERTS": str(site.user.directory)}
    folders = [tmp_path / name for name in ("system", "one", "two")]
    for folder in folders:
        folder.mkdir()
    system, one, two = folders
    with running_system(system, ["--num-csx=2"]) as alone:
        job = run(cluster, *words(alone.address, 10), program="csrun_cpu", cwd=one)
    assert job.process.returncode == 0, job.shown()
    ready = system / "group.json"
    flags = (
        *SERVE,
        f"--certs={site.system.directory}",
        f"--ready-file={ready}",
        f"--cache-dir={system / 'cache'}",
    )
    step = start(cluster, *flags, program="cs_system", before=STEP, cwd=system)
    address = read_ready_file(ready, step.process, LIMIT_S)["address"]
    step.wait_for("CS system 2 of 2: cs-node2")

    job = start(cluster, *words(address, 2000, "--delay=0.01"), program="csrun_cpu", cwd=two, env=env)
    wait(lambda: (two / "model_dir" / "checkpoint_10.mdl").exists(), job.shown)
    for pid in step.pids("SLURM_PROCID=1"):
        os.kill(pid, signal.SIGKILL)
    began_s = time.monotonic()
    job.wait_for("CS system 2 of 2 (cs-node2) has gone; the state is lost, start the job again")
    assert time.monotonic() - began_s < 10
    assert job.end() == 1
    expected, found = weights(one), weights(two)
    assert expected
    assert expected.keys() == found.keys()
    assert all(torch.equal(found[name], value) for name, value in expected.items())

    (number,) = cluster.jobs()
    cluster.run("scancel", number)
    step.end()
    assert "SIGTERM: shutting down" in step.stderr
    wait(lambda: not step.left(), step.shown)
    assert not list(system.glob("cs_group-*"))


def test_a_step_of_another_number_of_tasks(cluster: Any, run: Any) -> None:
    step = run(cluster, "serve", "--num-csx=3", program="cs_system", before=STEP)
    assert step.process.returncode == 2
    assert "--num-csx=3 in a Slurm step of 2 tasks: each task is a CS system of the group" in step.stderr
