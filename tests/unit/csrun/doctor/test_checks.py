"""Conclusions of the doctor from answers of a cluster and its nodes."""

from __future__ import annotations

import os
import sys
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from cs_toolkit.security.certificates import Authority, create_authority
from cs_toolkit.security.identity import Identity
from csrun.doctor import Finding, line, to_json, verdict
from csrun.doctor.machine import certificate_findings
from csrun.doctor.nodes import Answer, NodeAccess, ProbeRun, probe_findings, probe_nodes
from csrun.schedulers.slurm.checks import (
    is_busy,
    job_partition,
    node_findings,
    partition_findings,
    resource_findings,
)
from csrun.schedulers.slurm.client import Node, Partition, limit_seconds, shorten_error
from csrun.schedulers.slurm.place import read_place
from csrun.site import Site
from csrun.tasks.environment import this_toolkit

SETTINGS = {"gres_resource": "cs:1", "gres_node": "n1"}
SITE = Site(def_nodes=2, def_tasks_per_node=2, def_cpus_per_task=8, sections={"slurm": SETTINGS})
NODES = [
    Node("n1", 16, 1000, "cs:1", "all", "idle"),
    *(Node(f"n{number}", 16, 1000, "", "all", "idle") for number in (2, 3)),
]
PARTITIONS = [Partition("all", True, True, "1-00:00:00", 3), Partition("gpu", False, False, "infinite", 1)]


def levels(findings: list[Finding]) -> dict[str, str]:
    return {finding.name: finding.level for finding in findings}


def failure(findings: list[Finding]) -> Finding:
    (failed,) = [finding for finding in findings if finding.level == "fail"]
    assert failed.advice
    return failed


def test_a_cluster_that_fits_has_no_failure() -> None:
    found = [
        *partition_findings(SITE, PARTITIONS),
        *node_findings(SITE, NODES),
        *resource_findings(SITE, NODES, {}),
    ]
    assert set(levels(found).values()) == {"ok"}
    assert set(levels(found)) == {"partition", "time limit", "nodes", "default job", "gres"}
    assert verdict(found).startswith("a run would work")


@pytest.mark.parametrize(
    ("change", "name", "text"),
    [
        ({"partition": "nope"}, "partition", "unknown partition 'nope'"),
        ({"partition": "gpu"}, "partition", "gpu starts no jobs"),
        ({"time_limit": "2-00"}, "time limit", "above the 1-00:00:00 of all"),
        ({"time_limit": "soon"}, "time limit", "which is not a time"),
        ({"def_nodes": 4}, "default job", "3 nodes can be used"),
        ({"def_tasks_per_node": 3}, "default job", "needs 24 CPUs on a node, and the nodes have 16"),
        ({"gres_resource": "wse:1"}, "gres", "no node of the partition has the generic resource 'wse'"),
        ({"gres_resource": "cs:2"}, "gres", "more than any node has (1)"),
        ({"gres_node": "n2"}, "gres", "'cs' is on n1, and gres_node of the site is n2"),
        ({"licence": "cs:2"}, "licence", "the license 'cs:2' does not exist (cs: 1; all: cs, matlab)"),
    ],
)
def test_graphs_that_do_not_fit_fail_with_advice(change: dict[str, object], name: str, text: str) -> None:
    general = {name: value for name, value in change.items() if name.startswith("def_")}
    own = {name: value for name, value in change.items() if name not in general}
    site = replace(SITE, **general, sections={"slurm": {**SETTINGS, **own}})  # type: ignore[arg-type]
    found = [
        *partition_findings(site, PARTITIONS),
        *node_findings(site, NODES),
        *resource_findings(site, NODES, {"cs": (1, 0), "matlab": (4, 4)}),
    ]
    failed = failure(found)
    assert failed.name == name
    assert text in failed.text
    assert verdict(found).startswith("a run would not work: 1 of ")


def test_nodes_that_are_down_are_noted_and_not_counted() -> None:
    nodes = [replace(NODES[0], state="drained"), replace(NODES[1], state="down"), NODES[2]]
    assert levels(list(node_findings(SITE, nodes))) == {"nodes": "note", "default job": "fail"}
    assert levels(list(node_findings(replace(SITE, def_nodes=1), nodes)))["default job"] == "ok"


def test_a_drained_node_of_the_system_stops_all_jobs_with_slurms_reason() -> None:
    nodes = [replace(NODES[0], state="drained", reason="power supply"), *NODES[1:]]
    failed = failure(list(resource_findings(SITE, nodes, {"cs": (1, 0)})))
    assert failed.text == "no job can run: n1 is drained (power supply), and holds the CS system"
    [noted] = [one for one in node_findings(SITE, nodes) if one.name == "nodes"]
    assert noted.advice.startswith("n1 is drained (power supply); ")


def test_without_a_resource_for_the_system_a_run_works_and_is_noted() -> None:
    (finding,) = resource_findings(Site(), NODES, {})
    assert finding.level == "note"


def test_the_default_partition_is_that_of_the_cluster() -> None:
    assert job_partition(Site(), PARTITIONS) is PARTITIONS[0]
    assert job_partition(Site(sections={"slurm": {"partition": "gpu,all"}}), PARTITIONS) is PARTITIONS[1]


ACCESS = NodeAccess(("srun",), 2, {}, read_place, None, "", is_busy, shorten_error, "srun hostname")
ANSWERS = (Answer("n1", True, (), 0.01), Answer("n2", True, (), -0.2))


@pytest.mark.parametrize(
    ("answers", "name", "level", "text"),
    [
        (ANSWERS[:1], "connections", "fail", "only n1 of 2 nodes"),
        ((ANSWERS[0], Answer("n2", False, (), 0.0)), "shared files", "fail", "not the same on n2"),
        (
            (ANSWERS[0], Answer("n2", True, ("/img.sif",), 0.0)),
            "on the nodes",
            "fail",
            "/img.sif does not exist on n2",
        ),
        ((ANSWERS[0], Answer("n2", True, (), 8.0)), "clocks", "note", "n2 is +8.0 s off"),
        ((ANSWERS[0], Answer("n2", True, (), -400.0)), "clocks", "fail", "n2 is -400.0 s off"),
    ],
)
def test_missing_parts_of_nodes_are_named(
    answers: tuple[Answer, ...], name: str, level: str, text: str
) -> None:
    found = [one for one in probe_findings(ProbeRun(answers, ""), ACCESS) if one.level != "ok"]
    assert [(one.name, one.level) for one in found] == [(name, level)]
    assert text in found[0].text


def test_answers_of_all_nodes_are_all_right() -> None:
    assert set(levels(list(probe_findings(ProbeRun(ANSWERS, ""), ACCESS))).values()) == {"ok"}


def test_a_busy_cluster_is_no_failure_and_a_broken_one_is() -> None:
    busy = "srun: error: Unable to allocate resources: Requested nodes are busy"
    assert [one.level for one in probe_findings(ProbeRun((), busy), ACCESS)] == ["note"]
    (broken,) = probe_findings(ProbeRun((), "srun: error: Invalid node name specified"), ACCESS)
    assert broken.level == "fail"
    assert "Invalid node name specified" in broken.text


def test_findings_as_lines_and_json() -> None:
    finding = Finding("gres", "fail", "not there", "correct it")
    assert line(finding, colored=False) == (
        "FAIL  gres             not there\n                       -> correct it\n"
    )
    assert "\x1b[31mFAIL" in line(finding, colored=True)
    assert to_json([finding])["would_work"] is False


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("90", 5400),
        ("1:30", 90),
        ("4:00:00", 14_400),
        ("2-00", 172_800),
        ("1-2:30", 95_400),
        ("1-2:30:15", 95_415),
        ("infinite", float("inf")),
        ("UNLIMITED", float("inf")),
    ],
)
def test_times_as_slurm_writes_them(text: str, seconds: float) -> None:
    assert limit_seconds(text) == seconds


@pytest.mark.parametrize("text", ["5x", "1:2:3:4", "-5", "1-", "½"])
def test_invalid_times_are_no_limit(text: str) -> None:
    assert limit_seconds(text) is None


UNAUTHENTICATED = """
import os, socket, ssl, sys
from contextlib import suppress

context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
for data in (b"GET / HTTP/1.1\\n", b"[" * 60_000 + b"\\n", b'{"secret": "guessed"}\\n'):
    for encrypts in (False, True):
        with suppress(OSError), socket.create_connection(("127.0.0.1", int(sys.argv[-2]))) as sock:
            peer = context.wrap_socket(sock) if encrypts else sock
            peer.sendall(data)
            peer.recv(1)
os.execv(sys.argv[1], sys.argv[1:])
"""


def test_unauthenticated_peers_do_not_disturb_the_probe(tmp_path: Path) -> None:
    prefix = (sys.executable, "-c", UNAUTHENTICATED)
    access = NodeAccess(prefix, 1, os.environ, read_place, None, "", is_busy, shorten_error, "")
    run = probe_nodes(access, this_toolkit(), tmp_path, ())
    assert [(answer.shared, answer.missing) for answer in run.answers] == [(True, ())]


@pytest.mark.parametrize(
    ("days", "level", "text"), [(300, "ok", "until"), (29, "note", "in 29 days"), (-1, "fail", "ended on")]
)
def test_end_of_the_certificate(tmp_path: Path, days: int, level: str, text: str) -> None:
    create_authority(tmp_path, "lab")
    begin = datetime.now(UTC) + timedelta(days=min(0, days) - 1)
    length = days + 1 if days > 0 else 1
    identity = Identity("alice", "user")
    Authority(tmp_path).issue(tmp_path / "alice", identity, days=length, now=begin)
    (finding,) = certificate_findings(str(tmp_path / "alice"))
    assert (finding.level, text in finding.text) == (level, True), finding
    assert finding.text.startswith("user alice in")
    assert bool(finding.advice) == (level != "ok")


def test_certificate_that_others_may_read_or_that_is_missing(tmp_path: Path) -> None:
    assert list(certificate_findings("")) == []
    (finding,) = certificate_findings(str(tmp_path))
    assert (finding.level, "No such file" in finding.text) == ("fail", True)
    create_authority(tmp_path, "lab")
    Authority(tmp_path).issue(tmp_path / "alice", Identity("alice", "user"))
    (tmp_path / "alice" / "key.pem").chmod(0o644)
    (finding,) = certificate_findings(str(tmp_path / "alice"))
    assert (finding.level, finding.advice) == ("fail", f"expected 0600: chmod 600 {tmp_path}/alice/key.pem")
