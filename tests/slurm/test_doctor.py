"""csrun doctor on a real cluster: a line for every check, and an exit code that can be relied on."""

from __future__ import annotations

import json
from typing import Any

import pytest


@pytest.fixture
def doctor(run: Any) -> Any:
    """Runs it to its end: (cluster, words, variables) -> job."""

    def call(cluster: Any, *words: str, **variables: str) -> Any:
        return run(cluster, "doctor", *words, program="csrun", env=variables)

    return call


def levels(job: Any) -> dict[str, str]:
    found = json.loads(job.stdout)
    assert found["would_work"] == (job.process.returncode == 0)
    return {check["name"]: check["level"] for check in found["checks"]}


def test_a_cluster_that_works_is_said_to_work(cluster: Any, doctor: Any, tmp_path: Any) -> None:
    job = doctor(cluster, "--json", DEF_NODES="4", GRES_NODE="cs-node1")
    found = levels(job)
    assert job.process.returncode == 0, job.shown()
    for name in ("Slurm", "partition", "nodes", "gres", "ports", "connections", "shared files", "clocks"):
        assert found[name] == "ok", job.shown()
    assert cluster.jobs() == []
    assert not list(tmp_path.glob(".csrun-doctor*"))


def test_every_wrong_setting_is_a_failing_line_with_advice(cluster: Any, doctor: Any) -> None:
    job = doctor(
        cluster,
        "--no-probe",
        *("--cs-ip", "127.0.0.1:1"),
        GRES_RESOURCE="wse:1",
        DEF_NODES="9",
        CSRUN_LICENCE="cs:4",
    )
    assert job.process.returncode == 1
    failing = [line for line in job.stdout.splitlines() if line.startswith("FAIL")]
    assert [line.split("  ")[1].strip() for line in failing] == [
        "CS system",
        "default job",
        "gres",
        "licence",
    ]
    assert job.stdout.count("-> ") >= len(failing)
    assert "a run would not work: 4 of " in job.stdout


@pytest.mark.soak
def test_a_node_that_is_down_is_noted(make_cluster: Any, doctor: Any, wait: Any) -> None:
    cluster = make_cluster()
    cluster.run("scontrol", "update", "nodename=cs-node4", "state=down", "reason=repair")
    wait(lambda: cluster.states()["cs-node4"].startswith("down"))
    job = doctor(cluster, DEF_NODES="3")
    assert job.process.returncode == 0, job.shown()
    assert "1 of 4 cannot be used: cs-node4" in job.stdout
    assert "cs-node[1-3] connected back" in job.stdout


def test_a_missing_controller_is_reported(make_cluster: Any, doctor: Any) -> None:
    cluster = make_cluster()
    cluster.kill_daemon("slurmctld")
    job = doctor(cluster, GRES_RESOURCE="cs:1")
    assert job.process.returncode == 1
    assert "FAIL  Slurm            the Slurm controller does not answer" in job.stdout
    assert "running slurmctld" in job.stdout


def test_a_site_file_with_errors_fails_line_by_line(cluster: Any, doctor: Any, tmp_path: Any) -> None:
    (tmp_path / "site.yaml").write_text("launcher: cloud\ndef_nodes: 0\ncolour: red\n")
    job = doctor(cluster, CSRUN_SITE_CONFIG=str(tmp_path / "site.yaml"))
    assert job.process.returncode == 1
    assert job.stdout.count("FAIL  site") == 3
    assert "site.yaml:2" in job.stdout


def test_a_container_is_tried_on_a_node(cluster: Any, doctor: Any) -> None:
    """The submitting machine need not have the runtime; nodes report their missing parts."""
    site = {"CSRUN_CONTAINER": "apptainer", "SINGULARITY_IMAGE": "/nowhere/image.sif"}
    job = doctor(cluster, "--nodes=1", **site)
    assert job.process.returncode == 1
    (line,) = [line for line in job.stdout.splitlines() if line.startswith("FAIL  container")]
    assert "apptainer does not start a program in /nowhere/image.sif: slurmstepd" in line
    assert "/nowhere/image.sif does not exist on cs-node" in job.stdout
    assert "note  container        not checked" in doctor(cluster, "--no-probe", **site).stdout


def test_a_drained_node_of_the_system_is_reported_with_the_administrators_reason(
    cluster: Any, doctor: Any
) -> None:
    cluster.run("scontrol", "update", "nodename=cs-node1", "state=drain", "reason=power supply of ada")
    try:
        job = doctor(cluster, "--no-probe")
    finally:
        cluster.run("scontrol", "update", "nodename=cs-node1", "state=resume")
    assert job.process.returncode == 1
    assert "no job can run: cs-node1 is drained (power supply of ada), and holds the CS system" in job.stdout
