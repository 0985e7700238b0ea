"""cs_input_analyzer on a cluster: it measures on a node, never on the machine that it is called on."""

from __future__ import annotations

import json
import re
import signal
from pathlib import Path
from typing import Any

import pytest

from csrun.schedulers.slurm.allocation import step_variables

BIN = Path(__file__).resolve().parents[2] / "bin"
ANALYZER = "cs_input_analyzer"
SITE = {"GRES_NODE": "cs-node1"}
SALLOC = ("salloc", "--nodes=2", "--ntasks=2", "--quiet")
# A file that is not on the node that reads it; only a run on every node could tell that others have it.
MISSING = """
import os
from pathlib import Path
from input_rules.input_export import InputProgram, export_input

def train_input(shard):
    node = os.environ["SLURMD_NODENAME"]
    Path(f"{os.environ['SLURM_CPUS_ON_NODE']} CPUs of {node}/train.tfrecord").read_bytes()
    yield

export_input(InputProgram("tensorflow", train_input, lambda shard: None, train_input))
"""
HANGING = """
import time
from pathlib import Path
Path("up").touch()
time.sleep(1000)
"""


@pytest.fixture
def program(tmp_path: Path) -> Path:
    """A program whose input function cannot read its file."""
    (tmp_path / "run.py").write_text(MISSING)
    return tmp_path / "run.py"


def test_an_error_names_the_node_of_the_analysis(cluster: Any, run: Any, program: Path) -> None:
    job = run(cluster, "--launcher=slurm", "--json=a.json", "python", "run.py", program=ANALYZER, env=SITE)
    assert job.process.returncode == 1, job.shown()
    assert "the input function raised FileNotFoundError on cs-node2:\n" in job.stderr
    assert "'4 CPUs of cs-node2/train.tfrecord'" in job.stderr
    assert not program.with_name("a.json").exists()


def test_in_an_allocation_on_a_node_of_that(cluster: Any, run: Any, program: Path) -> None:
    job = run(cluster, "python", "run.py", program=ANALYZER, env=SITE, before=SALLOC)
    assert job.process.returncode == 1, job.shown()
    assert "'1 CPUs of cs-node2/train.tfrecord'" in job.stderr


def test_in_a_batch_script_where_that_runs(cluster: Any, wait: Any, program: Path) -> None:
    said = program.with_name("said")
    command = f"{BIN / ANALYZER} --launcher=slurm python run.py"
    where = ("--nodelist=cs-node3", f"--chdir={program.parent}", f"--output={said}")
    cluster.run("sbatch", *where, f"--wrap={command}")
    wait(lambda: said.exists() and "FileNotFoundError on cs-node3" in said.read_text())


def test_copies_find_the_variables_of_the_tasks_of_a_slurm_job(
    cluster: Any, run: Any, tmp_path: Path
) -> None:
    shown = "env | grep ^SLURM_ > {}"
    flags = ("--launcher=slurm", "--nodes=1", "--tasks-per-node=3", "--cpus-per-task=1")
    job = run(cluster, *flags, "sh", "-c", shown.format(f"{tmp_path}/rank$CSRUN_RANK"))
    assert job.process.returncode == 0, job.shown()
    cluster.run("srun", "--ntasks=1", "sh", "-c", shown.format(f"{tmp_path}/alone"))
    names = ("rank0", "rank1", "rank2", "alone")
    *tasks, alone = (
        dict(line.split("=", 1) for line in (tmp_path / n).read_text().splitlines()) for n in names
    )
    same = re.compile("SLURM_(STEP_)?N?(PROC|TASK|NUM_|LOCALID|GTIDS|NODES|CPUS_PER|NODEID)")
    for rank, task in enumerate(tasks):
        told = {**alone, **step_variables(alone, rank, 3, 1)}
        wanted = {name: text for name, text in task.items() if same.match(name) and "PID" not in name}
        assert len(wanted) > 9
        assert {name: told.get(name) for name in wanted} == wanted
    assert step_variables({}, 1, 3) == {}


def test_an_unknown_partition_is_refused(cluster: Any, run: Any, program: Path) -> None:
    flags = ("--launcher=slurm", "--partition=gpu")
    job = run(cluster, *flags, "python", "run.py", program=ANALYZER)
    assert job.process.returncode == 2, job.shown()
    assert "there is no partition 'gpu'; expected one of: all" in job.stderr


@pytest.mark.parametrize(
    ("signum", "code"),
    [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129), (signal.SIGKILL, -9)],
)
def test_nothing_is_left_on_the_node(
    cluster: Any, start: Any, wait: Any, tmp_path: Path, signum: signal.Signals, code: int
) -> None:
    (tmp_path / "run.py").write_text(HANGING)
    folder = tmp_path / "t"
    folder.mkdir()
    flags = ("--launcher=slurm", "python", "run.py")
    job = start(cluster, *flags, program=ANALYZER, env={"TMPDIR": str(folder)})
    wait((tmp_path / "up").exists)
    assert list(folder.iterdir())
    job.signal(signum)
    assert job.end() == code, job.shown()
    wait(lambda: not job.left() and not list(folder.iterdir()))


def test_nothing_is_left_of_a_batch_script_that_is_ended(cluster: Any, wait: Any, tmp_path: Path) -> None:
    """Only the shell gets the signal, and it ends without reporting to the analyzer."""
    (tmp_path / "run.py").write_text(HANGING)
    (tmp_path / "t").mkdir()
    command = f"TMPDIR={tmp_path}/t {BIN / ANALYZER} --launcher=slurm python run.py; true"
    where = (f"--chdir={tmp_path}", f"--output={tmp_path}/said", "--parsable")
    job = cluster.run("sbatch", *where, f"--wrap={command}").strip()
    wait((tmp_path / "up").exists)
    cluster.run("scancel", "--batch", "--signal=TERM", job)
    wait(lambda: "ended by SIGTERM" in (tmp_path / "said").read_text())
    wait(lambda: not list((tmp_path / "t").iterdir()))


@pytest.mark.soak
@pytest.mark.timeout(240)
def test_csrun_wse_takes_the_recommended_layout(cluster: Any, start: Any, run: Any, tmp_path: Path) -> None:
    fc_mnist = BIN.parent / "models" / "fc_mnist" / "tf" / "run.py"
    flags = ("--seconds=1", "--cpus-per-task=1", "--target-samples-per-s=100", "--json=a.json")
    words = ("python", str(fc_mnist), "--mode=train", "-o", "out")
    job = start(cluster, *flags, *words, program=ANALYZER, env=SITE, before=(*SALLOC, "--cpus-per-task=2"))
    assert job.end(200) == 0, job.shown()
    found = json.loads((tmp_path / "a.json").read_text())
    assert found["available_nodes"] == 2
    assert found["node"]["name"] == "cs-node2"
    assert found["node"]["cpus"] <= 2
    recommended = found["recommendation"]
    show = ("sh", "-c", "echo task of $CSRUN_NUM_TASKS")
    job = run(cluster, "--recommendation=a.json", *show)
    assert job.process.returncode == 0, job.shown()
    tasks = recommended["nodes"] * recommended["tasks_per_node"]
    assert job.stdout.count(f"task of {tasks}") == tasks
