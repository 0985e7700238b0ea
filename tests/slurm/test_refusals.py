"""Requests that would wait forever, or share a node, on a real cluster."""

from __future__ import annotations

from typing import Any

import pytest

from .cluster import SlurmCluster


@pytest.fixture(scope="module")
def limited(slurm_programs: None) -> Any:
    """Two nodes, and a partition that allows five minutes."""
    partition = "PartitionName=short Nodes=cs-node[1-2] MaxTime=5 State=UP"
    with SlurmCluster(2, isolate=True, partitions=partition) as running:
        yield running


@pytest.mark.parametrize("program", ["csrun_wse", "csrun_cpu"])
@pytest.mark.parametrize(
    ("words", "variables", "message"),
    [
        (("--time=10", "--partition=short"), {}, "--time=10 is more than the partition allows (short 5:00)"),
        ((), {"GRES_NODE": "cs-node9"}, "there is no node 'cs-node9'"),
    ],
)
def test_jobs_that_could_never_start_are_refused(
    limited: Any, run: Any, program: str, words: tuple[str, ...], variables: dict[str, str], message: str
) -> None:
    one = {"DEF_NODES": "1", "DEF_TASKS": "1"}
    job = run(limited, *words, "true", program=program, env={**one, **variables})
    assert job.process.returncode == 2, job.shown()
    assert message in job.stderr
    assert limited.jobs() == []


def test_a_job_within_the_limits_of_a_partition_runs(limited: Any, run: Any) -> None:
    words = ("--time=5", "--partition=short,all", "--total-nodes=1", "--tasks-per-node=1")
    assert run(limited, *words, "true").process.returncode == 0


@pytest.mark.parametrize(("flags", "noted"), [((), True), (("--gres=cs:1",), False), (("-Lcs:1",), False)])
def test_an_allocation_without_the_cs_system_is_noted(
    limited: Any, run: Any, flags: tuple[str, ...], noted: bool
) -> None:
    variables = {"GRES_RESOURCE": "", "CSRUN_LICENCE": "cs:1"} if "-Lcs:1" in flags else {}
    job = run(
        limited,
        *("--total-nodes=1", "--tasks-per-node=1", "true"),
        before=("salloc", "--nodes=1", *flags),
        env=variables,
    )
    assert job.process.returncode == 0, job.shown()
    assert ("does not hold cs:1" in job.stderr) == noted


def test_local_jobs_are_listed_without_a_controller(make_cluster: Any, run: Any, tmp_path: Any) -> None:
    cluster = make_cluster(nodes=1)
    home = {"XDG_STATE_HOME": str(tmp_path / "state")}
    flags = ("--total-nodes=1", "--tasks-per-node=1", "true")
    assert run(cluster, *flags, env=home).process.returncode == 0
    assert run(cluster, "--launcher=local", *flags, env=home).process.returncode == 0
    cluster.kill_daemon("slurmctld")
    listed = run(cluster, "status", program="csrun", env=home)
    assert listed.process.returncode == 0, listed.shown()
    assert [line.split("-")[0] for line in listed.stdout.splitlines()[1:]] == ["local", "slurm"]
    assert listed.stdout.count("done") == 2
    assert "the Slurm controller does not answer" in listed.stderr
