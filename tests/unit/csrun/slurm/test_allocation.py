"""Components of a job, and an allocation of Slurm's as its variables describe it."""

from __future__ import annotations

import pytest

from cs_toolkit.errors import UsageError
from csrun.jobs.layout import JobLayout
from csrun.schedulers.slurm.allocation import (
    Allocation,
    Component,
    components,
    host_file,
    read_allocation,
    with_whole_nodes,
)
from csrun.schedulers.slurm.arguments import (
    node_lists,
    request_arguments,
    srun_cpu,
    srun_cpu_step,
    srun_job,
    srun_step,
)
from csrun.schedulers.slurm.options import SlurmOptions
from csrun.site import Site

AGENT = ("agent",)
STEP = "--input=none --mpi=none --chdir=/ --wait=0 --kill-on-bad-exit=0"


@pytest.mark.parametrize(
    ("layout", "expected"),
    [
        (JobLayout(1, 4, 2), [Component(1, 4, 2, holds_system=True)]),
        (
            JobLayout(3, 5, 16, cyclic=True),
            [Component(1, 5, 16, holds_system=True, exclusive=False), Component(2, 5, 16, cyclic=True)],
        ),
        (JobLayout(2, 4, 8, 1), [Component(1, 1, holds_system=True), Component(1, 4, 8)]),
        (
            JobLayout(5, 4, 8, 2, cyclic=True),
            [Component(1, 1, holds_system=True), Component(1, 1), Component(3, 4, 8, cyclic=True)],
        ),
        (JobLayout(5, 4, None, 4), [Component(1, 1, holds_system=True), Component(3, 1), Component(1, 4)]),
    ],
)
def test_the_components_of_a_layout(layout: JobLayout, expected: list[Component]) -> None:
    assert list(components(layout)) == expected


def test_tasks_on_separate_nodes_share_all_cpus_by_default() -> None:
    chief, between, rest = with_whole_nodes(components(JobLayout(5, 4, None, 2)), 10)
    assert (chief.cpus_per_task, between.cpus_per_task, rest.cpus_per_task) == (10, 10, 2)
    assert with_whole_nodes(components(JobLayout(5, 4, 3, 2)), 10)[2].cpus_per_task == 3
    shared, _ = with_whole_nodes(components(JobLayout(2, 4)), 10)
    assert shared.cpus_per_task is None
    assert with_whole_nodes(components(JobLayout(1, 4)), 2)[0].cpus_per_task == 1


def test_srun_for_nodes_of_its_own() -> None:
    options = SlurmOptions(time_limit="1:00:00", account="a b", gres="cs:1", extra=("--mem=0",))
    words = srun_job("job", components(JobLayout(5, 4, 8, 2, cyclic=True)), options, AGENT)
    wishes = "--account=a b --time=1:00:00 --mem=0 agent"
    assert " ".join(words) == (
        f"srun --job-name=job {STEP} --nodes=1 --gres=cs:1 --exclusive --ntasks=1 --ntasks-per-node=1 "
        f"{wishes} "
        f": --job-name=job {STEP} --nodes=1 --exclusive --ntasks=1 --ntasks-per-node=1 {wishes} "
        f": --job-name=job {STEP} --nodes=3 --exclusive --ntasks=12 --ntasks-per-node=4 --cpus-per-task=8 "
        f"--distribution=cyclic {wishes}"
    )
    assert "--account=a b" in words  # one word


def test_a_license_and_the_node_of_the_system_are_asked_for_once() -> None:
    options = SlurmOptions(licence="cs:1", gres_node="node1")
    parts = components(JobLayout(2, 1))
    first, second = map(request_arguments, parts, [options] * 2, node_lists(parts, options))
    assert "--licenses=cs:1 --nodelist=node1" in " ".join(first)
    assert not {"--licenses=cs:1", "--nodelist=node1"} & set(second)


def test_srun_in_a_plain_allocation_leaves_the_places_to_the_host_file() -> None:
    allocation = Allocation("7", (("a", "b"),))
    words = srun_step("job", components(JobLayout(2, 3, 2, 1)), allocation, AGENT)
    assert " ".join(words) == (
        f"srun --jobid=7 --job-name=job {STEP} --overlap --nodes=2 --ntasks=4 --distribution=arbitrary "
        f"--cpus-per-task=2 agent"
    )


def test_srun_in_a_heterogeneous_allocation_has_a_step_in_every_component() -> None:
    allocation = Allocation("7", (("a",), ("b", "c")), heterogeneous=True)
    words = srun_step("job", components(JobLayout(3, 2)), allocation, AGENT)
    assert " ".join(words) == (
        f"srun --jobid=7 --job-name=job --het-group=0 {STEP} --overlap --nodes=1 --ntasks=2 "
        f"--ntasks-per-node=2 agent "
        f": --het-group=1 {STEP} --overlap --nodes=2 --ntasks=4 --ntasks-per-node=2 agent"
    )


def test_srun_for_one_command() -> None:
    options = SlurmOptions(partition="cpu", gres_node="node1")
    words = srun_cpu("me", options, ("python", "a b"), exclude_gres=True, terminal=True, cpus=None)
    begin = "--job-name=me --nodes=1 --ntasks=1 --exclusive --mpi=none"
    assert (
        " ".join(words) == f"srun --disable-status --pty {begin} --exclude=node1 --partition=cpu python a b"
    )
    words = srun_cpu("me", options, ("echo", "a", ":", "$b"), exclude_gres=False, terminal=False, cpus=8)
    assert " ".join(words[:-3]) == f"srun --disable-status {begin} --cpus-per-task=8 --partition=cpu"
    assert words[-3:] == ("/bin/sh", "-c", "exec echo a : '$b'")


def test_srun_for_one_command_in_an_allocation_avoids_the_node_of_the_system() -> None:
    allocation = Allocation("7", (("a", "b"),))
    words = srun_cpu_step("me", allocation, ("python", "a b"), avoided_node="a", terminal=False)
    begin = "srun --disable-status --job-name=me --nodes=1 --ntasks=1 --mpi=none --overlap --jobid=7"
    assert " ".join(words) == f"{begin} --nodelist=b python a b"
    words = srun_cpu_step("me", Allocation("7", (("a",),)), ("python",), avoided_node="a", terminal=False)
    assert " ".join(words) == f"{begin} --nodelist=a python"
    parts = Allocation("7", (("a",), ("b", "c")), heterogeneous=True)
    words = srun_cpu_step("me", parts, ("python",), avoided_node="a", terminal=False)
    assert " ".join(words) == f"{begin} --nodelist=b --het-group=1 python"


def test_options_of_the_user_override_the_site() -> None:
    settings = {"partition": "site", "account": "site", "time_limit": "60", "gres_resource": "cs:1"}
    site = Site(sections={"slurm": {**settings, "slurm_options": ("-v",)}})
    options = SlurmOptions.of_site(site, {"--partition": "mine", "--dependency": "afterok:3"})
    assert options.arguments == (
        "--partition=mine",
        "--account=site",
        "--time=60",
        "--dependency=afterok:3",
        "-v",
    )
    assert options.gres == "cs:1"


PLAIN = {
    "SLURM_JOB_ID": "7",
    "SLURM_JOB_NODELIST": "n[1-2],n5",
    "SLURM_JOB_CPUS_PER_NODE": "16(x2),8",
    "SLURM_NTASKS_PER_NODE": "4",
    "SLURM_CPUS_PER_TASK": "2",
}
HETEROGENEOUS = {
    "SLURM_JOB_ID": "9",
    "SLURM_HET_SIZE": "2",
    "SLURM_JOB_NODELIST": "n1",
    "SLURM_JOB_NODELIST_HET_GROUP_0": "n1",
    "SLURM_JOB_NODELIST_HET_GROUP_1": "n[2-3]",
    "SLURM_JOB_CPUS_PER_NODE_HET_GROUP_0": "1",
    "SLURM_JOB_CPUS_PER_NODE_HET_GROUP_1": "4(x2)",
    "SLURM_RESTART_COUNT": "2",
}


def test_outside_of_a_job_there_is_none() -> None:
    assert read_allocation({"SLURM_CONF": "/etc/slurm.conf"}) is None


def test_a_plain_allocation() -> None:
    assert read_allocation(PLAIN) == Allocation(
        job_id="7",
        groups=(("n1", "n2", "n5"),),
        tasks_per_node=4,
        cpus_per_task=2,
        cpus_per_node={"n1": 16, "n2": 16, "n5": 8},
    )


def test_a_heterogeneous_allocation() -> None:
    assert read_allocation(HETEROGENEOUS) == Allocation(
        job_id="9",
        groups=(("n1",), ("n2", "n3")),
        heterogeneous=True,
        cpus_per_node={"n1": 1, "n2": 4, "n3": 4},
        restarts=2,
    )


def test_variables_that_are_missing_are_named() -> None:
    with pytest.raises(UsageError, match="SLURM_JOB_NODELIST_HET_GROUP_1 is not set"):
        read_allocation({k: v for k, v in HETEROGENEOUS.items() if k != "SLURM_JOB_NODELIST_HET_GROUP_1"})


def test_the_host_file_places_every_task_by_the_layout() -> None:
    allocation = Allocation("7", (("n1", "n2", "n5"),))
    nodes = allocation.ordered("n5")
    assert nodes == ("n5", "n1", "n2")
    assert host_file(JobLayout(3, 2, None, 1, cyclic=True), nodes).split() == ["n5", "n1", "n2", "n1", "n2"]
    assert allocation.ordered("elsewhere") == allocation.nodes


@pytest.mark.parametrize(
    ("environment", "layout", "text"),
    [
        (PLAIN, JobLayout(4, 1), "--total-nodes=4: job 7 has 3 nodes"),
        (PLAIN, JobLayout(3, 9), "job 7 has 8 CPUs on n5, and the tasks there need 9"),
        (PLAIN, JobLayout(2, 8, 3), "job 7 has 16 CPUs on n1, and the tasks there need 24"),
        (HETEROGENEOUS, JobLayout(3, 2), "job 9 has 1 CPU on n1, and the tasks there need 2"),
        (HETEROGENEOUS, JobLayout(2, 1), "components of 1 [+] 1 nodes and job 9 has components of 1 [+] 2"),
    ],
)
def test_layouts_that_do_not_fit_an_allocation_are_refused(
    environment: dict[str, str], layout: JobLayout, text: str
) -> None:
    allocation = read_allocation(environment)
    assert allocation is not None
    with pytest.raises(UsageError, match=text):
        allocation.check(layout)


@pytest.mark.parametrize(
    ("environment", "layout"),
    [
        (PLAIN, JobLayout(3, 8)),
        (PLAIN, JobLayout(2, 8, 2)),
        (HETEROGENEOUS, JobLayout(3, 4, None, 1)),
        (HETEROGENEOUS, JobLayout(3, 1)),
    ],
)
def test_layouts_that_fit_are_taken(environment: dict[str, str], layout: JobLayout) -> None:
    allocation = read_allocation(environment)
    assert allocation is not None
    allocation.check(layout)


def test_a_huge_number_of_components_takes_no_memory():
    with pytest.raises(UsageError, match="SLURM_JOB_NODELIST_HET_GROUP_0 is not set"):
        read_allocation({"SLURM_JOB_ID": "7", "SLURM_HET_SIZE": "9" * 19})


def test_a_huge_count_of_nodes_takes_no_memory():
    allocation = read_allocation(
        {
            "SLURM_JOB_ID": "7",
            "SLURM_JOB_NODELIST": "n[1-2]",
            "SLURM_JOB_CPUS_PER_NODE": "16(x99999999999)",
        }
    )
    assert allocation.cpus_per_node == {"n1": 16, "n2": 16}
