"""cs_input_analyzer on functions that return a torch DataLoader: reports, diffs, worker processes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from csrun.tasks.environment import program_environment, this_toolkit
from input_analyzer.measure.copies import Launch
from input_analyzer.measure.rates import Effort, Plan, Rates
from tests.processes import is_running, wait_until

ROOT = Path(__file__).parents[3]
ANALYZER = str(ROOT / "bin/cs_input_analyzer")
DATA = """
import os, time
from pathlib import Path

import torch
from torch.utils.data import DataLoader, Dataset


class Records(Dataset):
    def __init__(self, count=960):
        self.count = count

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        time.sleep(0.006)
        return torch.full((16,), float(index)), index


def train_input():
    return DataLoader(
        Records(),
        batch_size=7,
    )


class Heavy(Records):
    def __init__(self):
        super().__init__()
        self.shared = bytearray(os.urandom(1 << 20) * 200)

    def __getitem__(self, index):
        if not hasattr(self, "own"):
            self.own = bytearray(os.urandom(1 << 20) * 150)
            cpus = ",".join(map(str, sorted(os.sched_getaffinity(0))))
            Path(f"worker-{os.getpid()}").write_text(cpus)
        return super().__getitem__(index)


def heavy():
    return DataLoader(Heavy(), batch_size=4, num_workers=2, persistent_workers=True, drop_last=True)
"""


def run(tmp_path: Path, *words: str) -> subprocess.CompletedProcess[str]:
    (tmp_path / "data.py").write_text(DATA)
    return subprocess.run(
        [ANALYZER, *words], cwd=tmp_path, capture_output=True, text=True, timeout=200, check=False
    )


@pytest.mark.timeout(240)
def test_a_function_that_returns_a_loader_is_analysed(tmp_path: Path) -> None:
    # A record waits so long that workers help, and the target is met, also while other programs are busy.
    flags = ["--seconds=2", "--cpus-per-task=1", "--available-nodes=1"]
    target = "--target-samples-per-s=40"
    done = run(tmp_path, *flags, target, "--json=a.json", "--html=a.html", "data.py:train_input")
    assert done.returncode == 0, done.stderr
    found = json.loads((tmp_path / "a.json").read_text())
    assert found["subject"]["function"] == "train_input"
    assert found["subject"]["framework"] == "torch"
    assert found["subject"]["batch_size"] == 7
    assert found["subject"]["epoch_samples"] == 960
    assert [stage["name"] for stage in found["stages"]] == ["sampler", "getitem", "collate", "workers"]
    assert found["bottleneck"]["stage"] == "getitem"
    assert "waiting" in found["bottleneck"]["reason"]
    findings = {finding["id"]: finding for finding in found["findings"]}
    assert {"shard-missing", "drop-remainder-missing", "loader-workers-missing"} <= set(findings)
    lines = DATA.splitlines()
    for name, text in (
        ("drop-remainder-missing", "    return DataLoader("),
        ("loader-workers-missing", "    return DataLoader("),
    ):
        file, _, line = findings[name]["source"].rpartition(":")
        assert (Path(file).name, lines[int(line) - 1]) == ("data.py", text)
    assert found["input_bound"] is False
    gain = findings["loader-workers-missing"]["gain"]
    assert gain["kind"] == "measured"
    assert gain["times"] > 1.1
    assert "<h1>" in (tmp_path / "a.html").read_text()
    assert "loader-workers-missing" in done.stdout


@pytest.mark.soak
@pytest.mark.timeout(240)
def test_findings_are_shown_as_a_diff_of_the_source(tmp_path: Path) -> None:
    done = run(tmp_path, "--apply-dry-run", "data.py:train_input")
    assert done.returncode == 0, done.stderr
    added = [line[1:] for line in done.stdout.splitlines() if line.startswith("+") and "++" not in line]
    assert len(added) == 1
    assert "batch_size=7, drop_last=True, num_workers=" in added[0]
    assert (tmp_path / "data.py").read_text() == DATA, "the source stays as it is"


def measure(tmp_path: Path, function: str, plan: Plan, cpus: tuple[int, ...]) -> list[Any]:
    (tmp_path / "data.py").write_text(DATA)
    environment = dict(os.environ)
    environment = program_environment(environment, this_toolkit()).apply(environment)
    words = (sys.executable, "-m", "input_analyzer.function_program", f"{tmp_path}/data.py:{function}")
    launch = Launch(words, {**environment, "PWD": str(tmp_path)}, 60.0, None, "here")
    before = Path.cwd()
    os.chdir(tmp_path)
    try:
        return list(Rates(Effort(1.0, 2.0), None, cpus).measure(launch, plan, lambda doing, part: None))
    finally:
        os.chdir(before)


def test_worker_processes_are_pinned_and_counted(tmp_path: Path) -> None:
    cpus = tuple(sorted(os.sched_getaffinity(0)))
    (one,) = measure(tmp_path, "heavy", Plan(1, (1,)), cpus)
    workers = [file.read_text() for file in tmp_path.glob("worker-*")]
    assert len(workers) == 2
    assert len(set(workers)) == 1
    assert "," not in workers[0] or len(cpus) == 1, "pinned to the one CPU of their task"
    mib = one.memory_per_task_bytes >> 20
    # 200 MiB once, 150 MiB in each worker; Python and torch take less than 600 MiB more in three processes. A
    # worker of one epoch may be ending while those of the next one begin. Without shared memory: 1,600.
    assert 500 < mib < 1300
    assert one.samples_per_s > 0
    pids = [int(file.name.removeprefix("worker-")) for file in tmp_path.glob("worker-*")]
    wait_until(lambda: not any(map(is_running, pids)))
