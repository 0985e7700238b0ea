"""Jobs that can never run on a cluster are refused."""

from __future__ import annotations

import pytest

from cs_toolkit.errors import ToolkitError
from csrun.jobs.layout import JobLayout
from csrun.schedulers.slurm.client import Node, Partition, SlurmClient, SlurmRequestError
from csrun.schedulers.slurm.options import SlurmOptions
from csrun.schedulers.slurm.survey import ClusterFacts, survey_cluster, whole_node_cpus

FACTS = ClusterFacts("main", (64, 64, 16), frozenset({"cs"}))


@pytest.mark.parametrize(
    ("layout", "gres", "text"),
    [
        (JobLayout(4, 1), "", "--total-nodes=4: the partition 'main' has 3 nodes"),
        (JobLayout(3, 17), "", "--tasks-per-node=17 needs 17 CPUs on a node, and the nodes .* have 16"),
        (JobLayout(2, 5, 13), "", "--tasks-per-node=5 with --cpus-per-task=13 needs 65 CPUs"),
        (JobLayout(1, 1), "gpu:1", "no generic resource 'gpu' .it has: cs."),
    ],
)
def test_jobs_that_could_never_start_are_refused(layout: JobLayout, gres: str, text: str) -> None:
    with pytest.raises(ToolkitError, match=text) as refusal:
        FACTS.check(layout, SlurmOptions(gres=gres))
    assert refusal.value.exit_code == 2


@pytest.mark.parametrize("layout", [JobLayout(3, 16), JobLayout(2, 4, 16), JobLayout(3, 2, 8, 1)])
def test_layouts_that_fit_are_taken(layout: JobLayout) -> None:
    FACTS.check(layout, SlurmOptions(gres="cs:1"))


class Cluster(SlurmClient):
    """A cluster of two partitions that answers from here."""

    settings = {"SrunPortRange": "0-0", "SlurmctldHost[0]": "head(10.0.0.1)"}

    def __init__(self) -> None:
        super().__init__({})

    def partitions(self) -> list[Partition]:
        return [Partition("main", True, True, "infinite", 2), Partition("other", False, True, "1:00:00", 1)]

    def nodes(self) -> list[Node]:
        return [
            Node("n1", 8, 1000, "cs:1,gpu:4", "main", "idle"),
            Node("n2", 16, 1000, "", "main", "alloc"),
            Node("n2", 16, 1000, "", "other", "alloc"),
        ]

    def cpus_for_jobs(self) -> dict[str, int]:
        return {"n1": 8, "n2": 14}

    def configuration(self) -> dict[str, str]:
        return self.settings


def test_the_partition_that_counts_is_the_one_asked_for_else_the_default() -> None:
    facts = survey_cluster(Cluster(), SlurmOptions())
    assert facts == ClusterFacts("main", (14, 8), frozenset({"cs", "gpu"}))
    assert survey_cluster(Cluster(), SlurmOptions(partition="other")).cpus == (14,)
    assert survey_cluster(Cluster(), SlurmOptions(partition="main,other")).cpus == (14, 8)
    with pytest.raises(SlurmRequestError, match="no partition 'gpu'; expected one of: main, other"):
        survey_cluster(Cluster(), SlurmOptions(partition="gpu"))


def test_a_task_on_its_own_node_asks_for_the_cpus_that_most_nodes_have() -> None:
    assert whole_node_cpus(Cluster(), SlurmOptions(), "main") == 14
    assert whole_node_cpus(Cluster(), SlurmOptions(gres_node="n2"), "main,other") == 8
    assert whole_node_cpus(Cluster(), SlurmOptions(gres_node="n2"), "other") is None


def test_how_nodes_reach_the_launcher(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not survey_cluster(Cluster(), SlurmOptions()).loopback
    settings = {"SrunPortRange": "60001-63000", "SlurmctldHost[0]": "localhost(127.0.0.1)"}
    monkeypatch.setattr(Cluster, "settings", settings)
    facts = survey_cluster(Cluster(), SlurmOptions())
    assert facts.ports == (60001, 63000)
    assert facts.loopback


def test_a_job_of_more_nodes_than_can_be_used_is_announced_before_it_waits() -> None:
    facts = ClusterFacts("main", (8, 8, 8, 8), out_of_use=("n4 is drained (memory test)",))
    assert facts.notice(3) is None
    assert facts.notice(5) is None  # `check` refuses it
    assert facts.notice(4) == (
        "the job will wait: it needs 4 nodes and only 3 of the partition's 4 can be used, so it cannot start "
        "before 1 more returns to service: n4 is drained (memory test)"
    )
