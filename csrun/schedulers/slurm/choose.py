"""Looks at cluster and allocation and makes the scheduler that fits them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from csrun.schedulers.slurm.allocation import Allocation, read_allocation
from csrun.schedulers.slurm.client import SlurmClient
from csrun.schedulers.slurm.errors import SlurmError
from csrun.schedulers.slurm.facts import ClusterFacts, look_around, network_facts
from csrun.schedulers.slurm.options import SlurmOptions
from csrun.schedulers.slurm.queue import holders
from csrun.schedulers.slurm.scheduler import SlurmScheduler
from csrun.site.model import Site


def slurm_scheduler(
    site: Site,
    options: SlurmOptions,
    environment: Mapping[str, str],
    total_nodes: int | None,
    *,
    must_answer: bool,
) -> tuple[SlurmScheduler, Site, int, list[str]]:
    """The scheduler, the defaults that hold there, the CPUs of each node, and what the user should know.

    Inside an allocation its nodes, and the tasks and CPUs that it was submitted with, beat the site's
    defaults.

    Args:
        site: its settings.
        options: what the job asks for.
        environment: of the launcher.
        total_nodes: as the user has given it.
        must_answer: a cluster that does not answer is an error; else only a notice.

    Raises:
        SlurmError: the cluster does not answer, or has no such partition.
        UsageError: the variables of an allocation cannot be understood.
    """
    allocation = read_allocation(environment)
    client = SlurmClient(environment)
    facts: ClusterFacts | None = None
    notices = []
    try:
        facts = network_facts(client) if allocation else look_around(client, options)
    except SlurmError as error:
        if must_answer or error.exit_code != 1:
            raise
        notices.append(f"{error}; nothing is checked against the cluster")
    if allocation is None:
        node_cpus = facts.node_cpus(total_nodes or site.def_nodes) if facts else 1
        return SlurmScheduler(options, facts), site, node_cpus, notices
    defaults = replace(
        site,
        def_nodes=len(allocation.nodes),
        def_tasks_per_node=allocation.tasks_per_node or site.def_tasks_per_node,
        def_cpus_per_task=allocation.cpus_per_task or site.def_cpus_per_task,
    )
    notices += _unreserved(client, allocation.job_id, options.gres or options.licence)
    node_cpus = min((allocation.cpus_per_node or {"": 1}).values(), default=1)
    holder = _system_node(client, allocation, options)
    return SlurmScheduler(options, facts, allocation, holder), defaults, node_cpus, notices


def _unreserved(client: SlurmClient, job_id: str, resource: str) -> list[str]:
    """What the user should know if his job does not hold the CS system, which is then free for others too."""
    try:
        jobs = client.jobs(job_id) if resource else []
    except SlurmError:
        return []
    if not jobs or holders(jobs, resource):
        return []
    return [
        f"job {job_id} does not hold {resource}: Slurm may give the CS system to another job meanwhile; ask "
        f"for it with the nodes (--gres or --licenses of salloc and sbatch)"
    ]


def _system_node(client: SlurmClient, allocation: Allocation, options: SlurmOptions) -> str:
    """The node of a plain allocation that owns the CS system; "" where none is known to."""
    if options.gres_node in allocation.nodes:
        return options.gres_node
    name = options.gres.partition(":")[0]
    if not name or allocation.heterogeneous or len(allocation.nodes) == 1:
        return ""
    try:
        nodes = client.nodes()
    except SlurmError:
        return ""
    owners = [
        node.name for node in nodes if name in [item.partition(":")[0] for item in node.resources.split(",")]
    ]
    return next((name for name in allocation.nodes if name in owners), "")
