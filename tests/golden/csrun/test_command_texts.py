"""Texts of the launchers, `csrun status` and `csrun doctor`, word for word.

Slurm's answers are recorded ones, and paths, versions and times are replaced by their names. `UPDATE_GOLDEN=1
pytest tests/golden/csrun` writes the files again; look at the difference.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from cs_toolkit import __version__
from tests.processes import clean_environment

from .recorded_cluster import write_commands

ROOT = Path(__file__).resolve().parents[3]
TEXTS = Path(__file__).parent / "texts"
SLURM = {"GRES_RESOURCE": "cs:1", "CSRUN_PARTITION": "all"}
INSIDE = {"SLURM_JOB_ID": "11", "SLURM_JOB_NODELIST": "cs-node[1-2]", "SLURM_JOB_CPUS_PER_NODE": "8(x2)"}
JOB = ("--job-id=job-1", "--total-nodes=2", "--tasks-per-node=2")
PROGRAM = ("python", "run.py", "--mode=train", "a b")

Text = Callable[..., str]


@pytest.fixture
def text(tmp_path: Path) -> Iterator[Text]:
    """Runs a program of bin/ and returns everything that it says, as it is on every machine."""
    write_commands(tmp_path / "slurm")
    (tmp_path / "project").mkdir()
    clean = clean_environment("LD_", "XDG_", "VIRTUAL_ENV", "LLVM_", "CONDA_", "NO_COLOR")
    clean["PATH"] = f"{tmp_path}/slurm:/usr/bin:/bin"
    clean |= {"XDG_STATE_HOME": f"{tmp_path}/state", "XDG_CONFIG_HOME": f"{tmp_path}/config"}

    def call(program: str, *words: str, env: dict[str, str]) -> str:
        done = subprocess.run(
            [ROOT / "bin" / program, *words],
            cwd=tmp_path / "project",
            env={**clean, **env},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        parts = (f"exit code {done.returncode}\n", "--- stdout\n", done.stdout, "--- stderr\n", done.stderr)
        # A loaded machine makes the launchers say what they do.
        said = re.sub(r"csrun_\w+: asking .*\n", "", "".join(parts))
        return _named(said, tmp_path)

    # The programs inherit the one CPU of this thread: texts that count CPUs are equal on every machine.
    cpus = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(cpus)})
    yield call
    os.sched_setaffinity(0, cpus)


def _named(text: str, folder: Path) -> str:
    """The text with names for what differs from machine to machine."""
    bin_dir = Path(sys.executable).absolute().parent
    for value, name in ((folder, "FOLDER"), (bin_dir, "PYTHON_BIN"), (ROOT, "TOOLKIT")):
        text = text.replace(str(value), name)
    text = re.sub(r"Python \d[\d.]*", "Python N", text)
    text = re.sub(r"(Python N of .* with) [^\"\n]*", r"\1 FRONT_ENDS", text)
    return text.replace(__version__, "VERSION")


def _compare(text: str, name: str) -> None:
    path = TEXTS / f"{name}.txt"
    if os.environ.get("UPDATE_GOLDEN"):
        TEXTS.mkdir(exist_ok=True)
        path.write_text(text, encoding="utf-8")
    assert text == path.read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("name", "program", "words", "env"),
    [
        ("wse_local", "csrun_wse", ("--dry-run", *JOB, *PROGRAM), {}),
        ("wse_slurm", "csrun_wse", ("--dry-run", *JOB, "--time=4:00:00", *PROGRAM), SLURM),
        ("wse_slurm_allocation", "csrun_wse", ("--dry-run", "--job-id=job-1", *PROGRAM), SLURM | INSIDE),
        (
            "wse_batch_script",
            "csrun_wse",
            ("--use-sbatch", "--dry-run", "--requeue", *JOB, "--cpus-per-task=4", "--time=60", *PROGRAM),
            SLURM,
        ),
        ("wse_too_large", "csrun_wse", ("--dry-run", "--total-nodes=4", *PROGRAM), SLURM),
        ("wse_refused_batch", "csrun_wse", ("--use-sbatch", "--launcher=local", *PROGRAM), {}),
        ("wse_refused_launcher", "csrun_wse", ("--launcher=cloud", *PROGRAM), {}),
        ("wse_refused_requeue", "csrun_wse", ("--requeue", *PROGRAM), SLURM),
        ("wse_help", "csrun_wse", ("--help",), {}),
        ("cpu_local", "csrun_cpu", ("--dry-run", *PROGRAM), {}),
        ("cpu_local_alloc_node", "csrun_cpu", ("--alloc-node=True", "--dry-run", *PROGRAM), {}),
        ("cpu_slurm_inside", "csrun_cpu", ("--dry-run", *PROGRAM), SLURM | INSIDE),
        ("cpu_help", "csrun_cpu", ("--help",), {}),
        ("doctor_local", "csrun", ("doctor",), {}),
        ("doctor_slurm", "csrun", ("doctor", "--no-probe"), SLURM),
        ("doctor_slurm_busy", "csrun", ("doctor", "--nodes=2"), SLURM),
        ("doctor_slurm_json", "csrun", ("doctor", "--no-probe", "--json"), SLURM | {"GRES_NODE": "cs-node2"}),
        ("doctor_wrong", "csrun", ("doctor", "--no-probe"), {"GRES_RESOURCE": "gpu:1", "DEF_NODES": "9"}),
    ],
)
def test_launchers_and_doctor(
    text: Text, name: str, program: str, words: tuple[str, ...], env: dict[str, str]
) -> None:
    _compare(text(program, *words, env=env), name)


def test_one_program_on_its_own_node(text: Text) -> None:
    said = text("csrun_cpu", "--dry-run", *PROGRAM, env=SLURM)
    _compare(re.sub(r"project-[0-9a-f]{12}", "STEP", said), "cpu_slurm")


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("status_list", ("status",)),
        ("status_waiting", ("status", "12")),
        ("status_running", ("status", "11")),
        ("status_ended", ("status", "10")),
        ("status_local", ("status", "local-20261120-101400-9f9f")),
        ("status_json", ("status", "--json", "11")),
        ("logs_ended", ("logs", "--follow", "10")),
        ("cancel_ended", ("cancel", "10")),
    ],
)
def test_jobs(text: Text, tmp_path: Path, name: str, words: tuple[str, ...]) -> None:
    _write_jobs(tmp_path)
    _compare(text("csrun", *words, env=SLURM), name)


def _write_jobs(folder: Path) -> None:
    """Four jobs in the list: one that waits, one that runs, one that Slurm has ended, a local one."""
    entries = folder / "state" / "csrun" / "jobs"
    entries.mkdir(parents=True)
    jobs = [
        ("slurm-20261120-101600-2b3c", "slurm", "12", None),
        ("slurm-20261120-101530-1a2b", "slurm", "11", {"ended": None, "exit_code": None}),
        ("slurm-20261120-101500-0a1b", "slurm", "10", {"ended": "2026-11-20T10:20:00+0000", "exit_code": 1}),
        ("local-20261120-101400-9f9f", "local", "", {"ended": "2026-11-20T10:15:00+0000", "exit_code": 0}),
    ]
    for age, (job_id, launcher, number, end) in enumerate(jobs):
        logs = folder / "logs" / job_id
        logs.mkdir(parents=True)
        entry = {"job_id": job_id, "log_dir": str(logs), "launcher": launcher, "command": PROGRAM}
        entry |= {"scheduler_job_id": number, "created_s": 4_000_000_000 - age}
        (entries / f"{job_id}.json").write_text(json.dumps(entry))
        if end is not None:
            _write_record(logs, entry, end)
        if number == "11":
            progress = {"step": 150, "first_step": 0, "last_step": 600, "steps_per_s": 1.25, "model_dir": "m"}
            (logs / "progress.json").write_text(json.dumps(progress))


def _write_record(logs: Path, entry: dict[str, object], end: dict[str, object]) -> None:
    states = (
        ("ended", "lost") if end["exit_code"] else ("ended", "ended") if end["ended"] else ("running",) * 2
    )
    code = {"ended": 0, "lost": None, "running": None}
    tasks = [
        {"rank": rank, "role": role, "index": 0, "host": f"cs-node{rank + 1}", "state": state}
        | {"log": f"{role}-0.log", "exit_code": code[state]}
        for rank, (role, state) in enumerate(zip(("chief", "worker"), states, strict=True))
    ]
    record = {**entry, **end, "host": "elsewhere", "started": "2026-11-20T10:15:31+0000", "tasks": tasks}
    (logs / "job.json").write_text(json.dumps(record))
    (logs / "chief-0.log").write_text("step 1\nstep 2\n")
