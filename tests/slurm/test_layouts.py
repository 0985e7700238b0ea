"""Tasks of a job on dedicated nodes, in heterogeneous steps, and in allocations of every kind."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

SHOW = """
import json, os
from csrun.tasks.roles import TaskInfo
task = TaskInfo.from_environment()
print(json.dumps({
    "rank": task.rank, "role": task.role, "index": task.index, "node": os.environ["SLURMD_NODENAME"],
    "tf_config": json.loads(os.environ["TF_CONFIG"]), "count": task.num_tasks, "job": task.job_id,
    "cpus": sorted(os.sched_getaffinity(0)), "token": task.token,
    "private": "CSRUN_SUPERVISOR_PORT" in os.environ,
}))
"""


def tasks(stdout: str) -> list[dict[str, Any]]:
    """Return the output of the tasks by rank."""
    found = [json.loads(line.partition(" | ")[2]) for line in stdout.splitlines()]
    return sorted(found, key=lambda task: task["rank"])


def nodes(job: Any) -> list[int]:
    """The node's number of every task, by rank."""
    assert job.process.returncode == 0, job.shown()
    return [int(task["node"].removeprefix("cs-node")) for task in tasks(job.stdout)]


def test_every_task_knows_its_part_in_a_heterogeneous_step(cluster: Any, run: Any, tmp_path: Path) -> None:
    job = run(cluster, "--total-nodes=3", "--tasks-per-node=2", "--log-dir=logs", "python", "-c", SHOW)
    shown = tasks(job.stdout)
    assert nodes(job) == [1, 1, 2, 2, 3, 3]
    hosts = [f"cs-node{number}:{23111 + rank}" for rank, number in enumerate([1, 1, 2, 2, 3, 3])]
    for rank, task in enumerate(shown):
        role, index = ("chief", 0) if rank == 0 else ("worker", rank - 1)
        assert (task["rank"], task["role"], task["index"], task["count"]) == (rank, role, index, 6)
        assert task["tf_config"] == {
            "cluster": {"chief": hosts[:1], "worker": hosts[1:]},
            "task": {"type": role, "index": index},
        }
        assert not task["private"]
    assert len({task["token"] for task in shown}) == 1
    names = {path.name for path in (tmp_path / "logs").glob("*.log")}
    assert names == {"chief-0.log", *(f"worker-{index}.log" for index in range(5))}
    assert json.loads((tmp_path / "logs" / "worker-3.log").read_text())["rank"] == 4
    record = json.loads((tmp_path / "logs" / "job.json").read_text())
    assert [task["host"] for task in record["tasks"]] == [f"cs-node{number}" for number in (1, 1, 2, 2, 3, 3)]
    assert record["scheduler_job_id"].isdigit()


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        (("--total-nodes=1", "--tasks-per-node=3"), [1, 1, 1]),
        (("--total-nodes=3", "--tasks-per-node=2", "--cyclic"), [1, 1, 2, 3, 2, 3]),
        (("--total-nodes=4", "--single-task-nodes=1", "--tasks-per-node=2"), [1, 2, 2, 3, 3, 4, 4]),
        (("--total-nodes=4", "--single-task-nodes=2", "--tasks-per-node=2", "--cyclic"), [1, 2, 3, 4, 3, 4]),
        (("--total-nodes=4", "--single-task-nodes=3", "--tasks-per-node=2"), [1, 2, 3, 4, 4]),
    ],
)
def test_layouts_on_nodes_of_its_own(
    cluster: Any, run: Any, flags: tuple[str, ...], expected: list[int]
) -> None:
    assert nodes(run(cluster, *flags, "python", "-c", SHOW)) == expected


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        ((), [1, 2, 2, 3, 3, 4, 4]),
        (("--cyclic",), [1, 2, 3, 4, 2, 3, 4]),
    ],
)
def test_inside_a_plain_allocation_the_tasks_follow_the_layout(
    cluster: Any, run: Any, flags: tuple[str, ...], expected: list[int]
) -> None:
    """All nodes of the allocation are taken, though the site's default is one."""
    salloc = ("salloc", "--nodes=4", "--exclusive", "--gres=none", "--quiet")
    layout = ("--single-task-nodes=1", "--tasks-per-node=2")
    assert nodes(run(cluster, *layout, *flags, "python", "-c", SHOW, before=salloc)) == expected


def test_inside_a_shell_that_srun_has_started(cluster: Any, run: Any) -> None:
    """The shell's step holds all processors of the job and the system."""
    shell = ("srun", "--nodes=1", "--ntasks=1", "--exclusive", "--gres=cs:1", "--cpus-per-task=4")
    assert nodes(run(cluster, "--tasks-per-node=2", "python", "-c", SHOW, before=shell)) == [1, 1]


def test_inside_an_allocation_the_chief_is_where_the_system_is(make_cluster: Any, run: Any) -> None:
    """cs-node1 has the system and stands last in this allocation's list of nodes."""
    cluster = make_cluster(2, system_node=2)
    salloc = ("salloc", "--nodes=2", "--exclusive", "--quiet")
    job = run(cluster, "--tasks-per-node=2", "python", "-c", SHOW, before=salloc)
    assert nodes(job) == [2, 2, 1, 1]


def test_inside_an_allocation_what_it_was_submitted_with_is_the_default(cluster: Any, run: Any) -> None:
    salloc = ("salloc", "--nodes=2", "--ntasks-per-node=2", "--cpus-per-task=2", "--exclusive", "--quiet")
    job = run(cluster, "python", "-c", SHOW, before=salloc)
    assert nodes(job) == [1, 1, 2, 2]


def test_a_heterogeneous_allocation_has_the_components_of_the_layout(cluster: Any, run: Any) -> None:
    salloc = ("salloc", "--quiet", "--nodes=1", "--gres=cs:1", ":", "--nodes=2", "--exclusive")
    job = run(cluster, "--tasks-per-node=1", "python", "-c", SHOW, before=salloc)
    assert nodes(job) == [1, 2, 3]
    refused = run(cluster, "--single-task-nodes=2", "--tasks-per-node=1", "true", before=salloc)
    assert refused.process.returncode == 2
    assert "the layout needs components of 1 + 1 + 1 nodes" in refused.stderr


def test_inside_a_batch_script(cluster: Any, run: Any, tmp_path: Path, wait: Any) -> None:
    """The variables of the script (number of tasks, CPUs, host lists) must not become options of srun."""
    script = tmp_path / "job.sh"
    script.write_text(
        "#!/bin/bash\n#SBATCH --nodes=1 --gres=cs:1 --ntasks-per-node=2\n#SBATCH hetjob\n"
        "#SBATCH --nodes=2 --ntasks-per-node=2 --cpus-per-task=2 --exclusive\n"
        f'cd "{tmp_path}"; "$@"; echo "code $?"\n'
    )
    launcher = Path(__file__).resolve().parents[2] / "bin" / "csrun_wse"
    cluster.run(
        *("sbatch", f"--output={tmp_path}/out", str(script)),
        *(str(launcher), "--launcher=slurm", "--tasks-per-node=2", "--log-dir=logs", "python", "-c", SHOW),
    )
    wait(lambda: (tmp_path / "out").exists() and "code " in (tmp_path / "out").read_text())
    output = (tmp_path / "out").read_text()
    assert "code 0" in output, output
    shown = tasks("\n".join(line for line in output.splitlines() if " | {" in line))
    assert [task["node"] for task in shown] == [f"cs-node{number}" for number in (1, 1, 2, 2, 3, 3)]


def test_more_tasks_than_the_allocation_has_cpus(cluster: Any, run: Any) -> None:
    salloc = ("salloc", "--nodes=2", "--ntasks-per-node=1", "--quiet")
    job = run(cluster, "--tasks-per-node=2", "true", before=salloc)
    assert job.process.returncode == 2
    assert "has 1 CPU on cs-node1, and the tasks there need 2" in job.stderr


def test_more_nodes_than_the_allocation_has(cluster: Any, run: Any) -> None:
    salloc = ("salloc", "--nodes=2", "--exclusive", "--quiet")
    job = run(cluster, "--total-nodes=3", "true", before=salloc)
    assert job.process.returncode == 2
    assert "--total-nodes=3: job" in job.stderr
    assert "has 2 nodes (cs-node1, cs-node2); expected no more" in job.stderr


@pytest.mark.parametrize(
    ("flags", "text"),
    [
        (("--total-nodes=9",), "the partition 'all' has 4 nodes; expected no more"),
        (("--tasks-per-node=5",), "--tasks-per-node=5 needs 5 CPUs on a node"),
        (
            ("--tasks-per-node=2", "--cpus-per-task=3"),
            "--tasks-per-node=2 with --cpus-per-task=3 needs 6 CPUs",
        ),
        (("--cpus-per-task=5",), "--cpus-per-task=5 needs 5 CPUs on a node"),
        (("--total-nodes=2", "--single-task-nodes=2"), "expected fewer single-task nodes than nodes"),
        (("--partition=gpu",), "there is no partition 'gpu'; expected one of: all"),
        (("--time=soon",), "--time: got 'soon', expected a time limit as"),
        (("--dependency=after the rain",), "the dependency cannot be used"),
    ],
)
def test_impossible_jobs_are_refused_before_they_wait(
    cluster: Any, run: Any, flags: tuple[str, ...], text: str
) -> None:
    job = run(cluster, *flags, "true")
    assert job.process.returncode == 2, job.shown()
    assert text in job.stderr
    assert not cluster.jobs()


def test_a_resource_that_does_not_exist_is_refused(cluster: Any, run: Any) -> None:
    job = run(cluster, "true", env={"GRES_RESOURCE": "wafer:1"})
    assert job.process.returncode == 2
    assert "has no generic resource 'wafer' (it has: cs)" in job.stderr


def test_more_of_a_resource_than_there_is_is_refused(cluster: Any, run: Any) -> None:
    job = run(cluster, "true", env={"GRES_RESOURCE": "cs:2"})
    assert job.process.returncode == 2
    assert "no nodes of this cluster can ever provide that" in job.stderr


def test_a_license_means_the_system(cluster: Any, run: Any) -> None:
    licence = {"GRES_RESOURCE": "", "CSRUN_LICENCE": "cs:1"}
    job = run(cluster, "--total-nodes=2", "--tasks-per-node=1", "python", "-c", SHOW, env=licence)
    assert len(nodes(job)) == 2
    refused = run(cluster, "true", env={"GRES_RESOURCE": "", "CSRUN_LICENCE": "cs:5"})
    assert refused.process.returncode == 2
    assert "the cluster has no such license, or too few" in refused.stderr


def test_only_cpus_given_as_many_tasks_as_fit(cluster: Any, run: Any) -> None:
    assert nodes(run(cluster, "--total-nodes=2", "--cpus-per-task=2", "python", "-c", SHOW)) == [1, 1, 2, 2]


def test_tasks_are_pinned_to_their_own_cpus(cluster: Any, run: Any) -> None:
    """Slurm pins nothing here (task/none), so the launcher does; the node claims more CPUs than there are."""
    available = sorted(os.sched_getaffinity(0))
    count = min(2, len(available))
    job = run(
        cluster, "--total-nodes=1", f"--tasks-per-node={count}", "--cpus-per-task=1", "python", "-c", SHOW
    )
    nodes(job)
    assert [task["cpus"] for task in tasks(job.stdout)] == [[cpu] for cpu in available[:count]]


def test_dry_run_shows_the_words_of_srun_and_starts_nothing(cluster: Any, run: Any, tmp_path: Path) -> None:
    words = ("--total-nodes=3", "--tasks-per-node=2", "--cpus-per-task=2", "--time=10", "--account=a b")
    job = run(cluster, "--dry-run", *words, "python", "run me.py")
    assert job.process.returncode == 0, job.shown()
    srun = next(line for line in job.stdout.splitlines() if line.startswith("srun: "))
    component = "--input=none --mpi=none --chdir=/ --wait=0 --kill-on-bad-exit=0"
    assert f"{component} --nodes=1 --gres=cs:1 --ntasks=2 --ntasks-per-node=2 --cpus-per-task=2" in srun
    assert f"{component} --nodes=2 --exclusive --ntasks=4 --ntasks-per-node=2 --cpus-per-task=2" in srun
    assert srun.count("'--account=a b' --time=10") == 2
    assert srun.count("csrun/agent/__main__.py") == 2
    assert "  command: python 'run me.py'" in job.stdout
    assert not list(tmp_path.glob("csrun_logs"))
    assert not cluster.jobs()


def test_sixty_four_tasks_on_eight_nodes_start_and_stop_clean(make_cluster: Any, wait: Any, run: Any) -> None:
    cluster = make_cluster(8, 8)
    job = run(
        cluster, "--total-nodes=8", "--tasks-per-node=8", "sh", "-c", 'echo "$CSRUN_RANK $SLURMD_NODENAME"'
    )
    assert job.process.returncode == 0, job.shown()
    shown = sorted(
        (line.partition(" | ")[2].split() for line in job.stdout.splitlines()),
        key=lambda words: int(words[0]),
    )
    assert shown == [[str(rank), f"cs-node{rank // 8 + 1}"] for rank in range(64)]
    wait(lambda: not cluster.jobs())  # Slurm may be cleaning up still


@pytest.mark.soak
def test_sixty_four_tasks_end_together_when_one_fails(make_cluster: Any, wait: Any, run: Any) -> None:
    cluster = make_cluster(8, 8)
    fail = '[ "$CSRUN_RANK" = 63 ] && exit 9; exec sleep 1000'
    job = run(cluster, "--total-nodes=8", "--tasks-per-node=8", "sh", "-c", fail)
    assert job.process.returncode == 9, job.shown()
    assert "worker 62 on cs-node8 failed with exit code 9" in job.stderr
    wait(lambda: not cluster.jobs())  # Slurm may be cleaning up still


def test_options_of_slurm_reach_the_job(cluster: Any, run: Any) -> None:
    flags = (
        "--job-name=mine",
        "--mem=100",
        "--exclude=cs-node3",
        "--slurm=comment=for tests",
        "--slurm=nice=7",
    )
    show = ("sh", "-c", "scontrol show job $SLURM_JOB_ID")
    job = run(cluster, "--total-nodes=1", "--tasks-per-node=1", *flags, *show)
    assert job.process.returncode == 0, job.shown()
    for field in (
        "JobName=mine",
        "MinMemoryNode=100M",
        "ExcNodeList=cs-node3",
        "Comment=for tests",
        "Nice=7",
    ):
        assert field in job.stdout, job.shown()
