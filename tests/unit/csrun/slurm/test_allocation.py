"""The allocation that Slurm's variables describe, and what fits into it."""

from __future__ import annotations

import pytest

from cs_toolkit.errors import UsageError
from csrun.jobs.layout import JobLayout
from csrun.schedulers.slurm.allocation import Allocation, host_file, read_allocation

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


def test_the_host_file_puts_every_task_where_the_layout_says() -> None:
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
def test_what_does_not_fit_is_refused(environment: dict[str, str], layout: JobLayout, text: str) -> None:
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
def test_what_fits_is_taken(environment: dict[str, str], layout: JobLayout) -> None:
    allocation = read_allocation(environment)
    assert allocation is not None
    allocation.check(layout)
