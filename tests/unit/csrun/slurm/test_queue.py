"""Messages for a waiting user from the output of squeue."""

from dataclasses import replace

import pytest

from csrun.schedulers.slurm.client import Node, QueuedJob, parse_queue
from csrun.schedulers.slurm.queue import holders, news, reason_sentence, waiting, will_never_start

JOB = QueuedJob(
    job_id="12",
    component=0,
    state="PENDING",
    reason="Resources",
    nodes="",
    user="ada",
    name="mine",
    resources="cs:1",
    licences="",
    start="",
    time_left="UNLIMITED",
    partition="all",
    priority=100,
)
NODE = Node("n1", 4, 2000, "", "all", "idle")
HOLDER = replace(
    JOB, job_id="7", state="RUNNING", reason="", user="bob", name="bert", nodes="n1", time_left="1:02:03"
)


def test_a_waiting_job_has_place_reason_holder_and_start() -> None:
    mine = replace(JOB, start="2026-11-20T17:00:00")
    before = replace(JOB, job_id="13", priority=200, user="eve")
    found = waiting([mine], [before, mine, HOLDER], "cs:1")
    assert found is not None
    assert found.place == 2
    assert found.sentence() == (
        "job 12 waits in partition all, place 2: it waits for free nodes, CPUs or resources; "
        "1 waiting job precedes it: job 13 of eve; "
        "the CS system is held by job 7 of bob (bert, 1:02:03 left); "
        "expected start 2026-11-20 17:00:00"
    )


def test_where_the_systems_node_is_out_of_use_no_job_can_run() -> None:
    nodes = [replace(NODE, resources="cs:1", state="drained", reason="power supply"), NODE]
    found = waiting([JOB], [JOB], "cs:1", nodes)
    assert found is not None
    assert found.sentence().endswith(
        "; no job can run: n1 is drained (power supply), and holds the CS system; it continues when the "
        "administrator has returned the node to service; expected start not known"
    )


def test_nodes_that_are_out_of_use_are_reported_where_a_job_waits_for_nodes() -> None:
    out = [replace(NODE, name=f"n{number}", state="down", reason="memory") for number in (2, 3, 4, 5)]
    nodes = [replace(NODE, resources="cs:1"), *out, replace(out[0], name="n6", partition="other")]

    def told(job: QueuedJob, *nodes: Node) -> str:
        found = waiting([job], [job], "", nodes)
        assert found is not None
        return news(found.sentence())

    assert told(JOB, *nodes[:2]).endswith("; no job holds the CS system; out of use: n2 is down (memory)")
    assert told(JOB, *nodes).endswith("n4 is down (memory), and 1 more ('sinfo -R' lists them)")
    assert "out of use" not in told(replace(JOB, reason="Priority"), *nodes)
    assert told(replace(JOB, partition="all,other"), nodes[1], nodes[1], nodes[-1]).endswith(
        "out of use: n2 is down (memory), n6 is down (memory)"
    )


def test_a_job_is_next_only_at_the_first_place() -> None:
    others = [replace(JOB, job_id=str(number), component=part) for number in (1, 2, 3, 4) for part in (0, 1)]
    first, later = (waiting([JOB], [JOB, *queue], "") for queue in ([], others))
    assert first is not None
    assert "place 1: it is next and waits for free nodes" in first.sentence()
    assert later is not None
    assert "is next" not in later.sentence()
    assert (
        "4 waiting jobs precede it: job 1 of ada, job 2 of ada, job 3 of ada, "
        "and 1 more ('squeue' lists them)" in later.sentence()
    )


# As Slurm 22.05 prints it for a job of 4 nodes of which one is drained.
NODES_REQUIRED = "Nodes required for job are DOWN, DRAINED or reserved for jobs in higher priority partitions"


@pytest.mark.parametrize("reason", ["Resources", NODES_REQUIRED, NODES_REQUIRED.replace(" ", "_")])
def test_a_job_that_needs_nodes_which_are_out_of_use_is_hopeless_until_they_return(reason: str) -> None:
    nodes = [replace(NODE, name=f"n{number}") for number in (1, 2, 3)]
    nodes.append(replace(NODE, name="n4", state="drained", reason="memory test"))
    first = replace(JOB, num_nodes=1, reason=reason, start="2026-11-20T17:00:00")
    parts = [first, replace(first, component=1, num_nodes=3, start="")]
    found = waiting(parts, parts, "", [*nodes, *(replace(node, partition="other") for node in nodes)])
    assert found is not None
    text = found.sentence()
    assert "is next" not in text
    assert (
        "; it needs 4 nodes and only 3 of the partition's 4 can be used, so it cannot start before 1 more "
        "returns to service: n4 is drained (memory test); expected start not known"
    ) in text
    if reason != "Resources":
        assert (
            "place 1: nodes that it needs are down, drained or reserved for jobs of higher priority;" in text
        )
    fits = waiting(parts[1:], parts, "", nodes)
    assert fits is not None
    assert "cannot start" not in fits.sentence()


def test_the_start_of_a_job_is_known_where_that_of_all_its_components_is() -> None:
    first = replace(JOB, start="2026-11-20T17:00:00")
    second = replace(first, component=1, start="2026-11-20T18:00:00")
    found = waiting([first, second], [first, second], "")
    assert found is not None
    assert found.start == "2026-11-20T18:00:00"


def test_equal_priorities_go_by_job_number() -> None:
    queue = [replace(JOB, job_id=number) for number in ("9", "12", "10", "100")]
    found = waiting([JOB], queue, "")
    assert found is not None
    assert found.place == 3


def test_jobs_of_other_partitions_and_own_components_are_not_before_it() -> None:
    components = [JOB, replace(JOB, component=1, resources="", priority=150)]
    other = replace(JOB, job_id="3", partition="gpu", priority=900)
    found = waiting(components, [other, *components], "cs:1")
    assert found is not None
    assert found.place == 1


def test_the_reason_of_another_component_counts_where_the_first_has_none() -> None:
    components = [replace(JOB, reason=""), replace(JOB, component=1, reason="Priority")]
    found = waiting(components, components, "")
    assert found is not None
    assert found.reason == "Priority"


def test_a_running_job_does_not_wait() -> None:
    assert waiting([HOLDER], [HOLDER], "cs:1") is None


def test_a_free_cs_system_is_said_to_be_free() -> None:
    found = waiting([JOB], [JOB], "cs:1")
    assert found is not None
    assert "no job holds the CS system" in found.sentence()


@pytest.mark.parametrize("resource", ["cs:1", "cs:cerebras:1", "cs"])
def test_holders_have_the_resource_or_the_licence(resource: str) -> None:
    by_licence = replace(HOLDER, resources="", licences="cs:1,matlab:2")
    other = replace(HOLDER, job_id="8", resources="gpu:4")
    assert holders([HOLDER, other, JOB], resource) == (HOLDER,)
    assert holders([by_licence, other], resource) == (by_licence,)
    assert holders([HOLDER], "") == ()


def test_jobs_that_can_never_start_are_reported() -> None:
    stuck = replace(JOB, reason="PartitionNodeLimit")
    found = waiting([stuck], [stuck], "")
    assert found is not None
    assert "it asks for more nodes than its partition has or allows" in found.sentence()
    assert "'scancel 12' removes it" in found.sentence()
    assert will_never_start("DependencyNeverSatisfied")
    assert not will_never_start("Priority")


@pytest.mark.parametrize(
    ("reason", "sentence"),
    [
        ("QOSMaxCpuPerUserLimit", "a limit of its QOS is reached (QOSMaxCpuPerUserLimit)"),
        ("AssocGrpCPUMinutesLimit", "a limit of its account or user is reached (AssocGrpCPUMinutesLimit)"),
        (
            "ReqNodeNotAvail, UnavailableNodes:n3",
            "a node that it must have is down, drained or reserved (UnavailableNodes:n3)",
        ),
        ("SomethingNew", "Slurm's reason is 'SomethingNew'"),
    ],
)
def test_reasons_of_any_kind_become_words(reason: str, sentence: str) -> None:
    assert reason_sentence(reason) == sentence


def test_squeue_lines_become_jobs() -> None:
    fields = "4+1|RUNNING|None|n[2-3]|root|a b|gres/cs:1(S:0)|(null)|2026-11-20T16:24:56|N/A|all|17|2"
    (job,) = parse_queue(fields.replace("|", "\x1f") + "\nbroken by a line end in a name\n")
    assert (job.job_id, job.component, job.reason, job.nodes) == ("4", 1, "", "n[2-3]")
    assert (job.resources, job.licences, job.priority, job.num_nodes) == ("cs:1", "", 17, 2)


def test_a_start_that_is_computed_again_is_no_news() -> None:
    sentence = "job 7 waits in partition all, place 1: it is next; no job holds the CS system"
    later = [f"{sentence}; expected start 2026-11-20 10:00:0{second}" for second in (1, 2)]
    assert news(later[0]) == news(later[1]) == sentence
    assert news(later[0].replace("place 1", "place 2")) != sentence
    assert news(f"{later[0]}; it will not start by itself") == f"{sentence}; it will not start by itself"
