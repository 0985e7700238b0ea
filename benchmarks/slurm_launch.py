"""Overhead of csrun_wse over plain srun, on a private Slurm cluster of emulated nodes on this machine.

    python -m benchmarks.slurm_launch

The contender is srun with the same components, nodes and tasks. The time is from the start of the command to
the first line of its first task. Needs Slurm's programs; without them there are no rows.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

from benchmarks.harness import Row, interleave, table

ROOT = Path(__file__).resolve().parent.parent
ROUNDS = 9
FIRST_LINE = "first line"
OVERHEAD_LIMIT_S = 0.5
LIMIT_S = 60.0
COMPLETING_LIMIT_S = 10.0
"""Slurm needs a moment to clean up after a job whose srun has ended."""


def rows() -> list[Row]:
    """Time to the first line on one and on three nodes, and 64 tasks on eight nodes from start to end."""
    sys.path.insert(0, str(ROOT / "tests" / "slurm"))
    cluster_module = import_module("cluster")
    missing = cluster_module.missing_programs()
    if missing:
        print(f"no Slurm rows: {', '.join(missing)} are not installed", flush=True)
        return []
    with cluster_module.SlurmCluster(8, 8) as cluster, tempfile.TemporaryDirectory() as folder:
        environment = {
            **cluster.environment,
            "GRES_RESOURCE": "cs:1",
            "XDG_STATE_HOME": folder,
            "XDG_CONFIG_HOME": folder,
        }
        return [
            _first_line_row("one node, 2 tasks", 1, 2, environment, folder),
            _first_line_row("3 nodes x 2 tasks", 3, 2, environment, folder),
            _many_tasks_row(cluster, environment, folder),
        ]


def _first_line_row(name: str, nodes: int, tasks: int, environment: Mapping[str, str], folder: str) -> Row:
    program = ["sh", "-c", f"echo {FIRST_LINE}"]
    ours = [str(ROOT / "bin" / "csrun_wse"), *_layout_flags(nodes, tasks), *program]
    seconds = interleave(
        {
            "csrun_wse": _to_first_line(ours, environment, folder),
            "srun": _to_first_line(_plain_srun(nodes, tasks, program), environment, folder),
        },
        ROUNDS,
    )
    differences = [mine - plain for mine, plain in zip(seconds["csrun_wse"], seconds["srun"], strict=True)]
    overhead_s = statistics.median(differences)
    return Row(
        f"Slurm: `csrun_wse` to the first line, {name}",
        f"{statistics.median(seconds['csrun_wse']):.2f} s, {overhead_s:+.2f} s over srun",
        f"`srun` {statistics.median(seconds['srun']):.2f} s",
        None,
        f"< {OVERHEAD_LIMIT_S:g} s over srun",
        overhead_s < OVERHEAD_LIMIT_S,
    )


def _many_tasks_row(cluster: Any, environment: Mapping[str, str], folder: str) -> Row:
    program = ["sh", "-c", f"echo {FIRST_LINE}"]
    ours = [str(ROOT / "bin" / "csrun_wse"), *_layout_flags(8, 8), *program]
    seconds = interleave(
        {
            "csrun_wse": _to_end(ours, environment, folder),
            "srun": _to_end(_plain_srun(8, 8, program), environment, folder),
        },
        3,
    )
    limit_s = time.monotonic() + COMPLETING_LIMIT_S
    while (left := cluster.jobs()) and time.monotonic() < limit_s:
        time.sleep(0.1)
    return Row(
        "Slurm: 64 tasks on 8 nodes, start to end",
        f"{statistics.median(seconds['csrun_wse']):.2f} s" + (f", left: {left}" if left else ""),
        f"`srun` {statistics.median(seconds['srun']):.2f} s",
        None,
        "nothing left",
        not left,
    )


def _layout_flags(nodes: int, tasks: int) -> list[str]:
    return [f"--total-nodes={nodes}", f"--tasks-per-node={tasks}"]


def _plain_srun(nodes: int, tasks: int, program: Sequence[str]) -> list[str]:
    first = ["srun", "--nodes=1", f"--ntasks-per-node={tasks}", "--gres=cs:1", *program]
    if nodes == 1:
        return first
    return [*first, ":", f"--nodes={nodes - 1}", f"--ntasks-per-node={tasks}", *program]


def _to_first_line(
    command: Sequence[str], environment: Mapping[str, str], folder: str
) -> Callable[[], float]:
    def measure() -> float:
        started_s = time.perf_counter()
        with subprocess.Popen(
            command,
            cwd=folder,
            env=dict(environment),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        ) as process:
            assert process.stdout is not None
            found_s = next(
                (time.perf_counter() for line in process.stdout if FIRST_LINE in line), float("nan")
            )
            process.stdout.read()
            process.wait(LIMIT_S)
        return found_s - started_s

    return measure


def _to_end(command: Sequence[str], environment: Mapping[str, str], folder: str) -> Callable[[], float]:
    def measure() -> float:
        started_s = time.perf_counter()
        subprocess.run(
            command,
            cwd=folder,
            env=dict(environment),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=LIMIT_S,
            check=True,
        )
        return time.perf_counter() - started_s

    return measure


if __name__ == "__main__":
    os.chdir(ROOT)
    print(table(rows()))
