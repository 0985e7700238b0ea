"""Looks at cluster and allocation before the layout of a job is decided."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from csrun.schedulers.base import Asked, Survey
from csrun.schedulers.slurm.allocation import Allocation, read_allocation
from csrun.schedulers.slurm.client import SlurmClient
from csrun.schedulers.slurm.errors import SlurmError
from csrun.schedulers.slurm.facts import ClusterFacts, look_around, network_facts
from csrun.schedulers.slurm.options import SlurmOptions
from csrun.schedulers.slurm.queue import holders
from csrun.site.model import Site


@dataclass(frozen=True)
class ClusterSurvey(Survey):
    """What is known of cluster and allocation.

    Attributes:
        options: what the job asks for besides nodes and tasks.
        facts: of the cluster; None where nothing is known, then nothing is checked.
        allocation: that we are in; None: the job gets one of its own.
        system_node: node of the allocation that holds the CS system; "": its first one.
    """

    options: SlurmOptions = field(default_factory=SlurmOptions)
    facts: ClusterFacts | None = None
    allocation: Allocation | None = None
    system_node: str = ""


def survey(asked: Asked) -> ClusterSurvey:
    """Asks the cluster. A job that is to be submitted gets an allocation of its own, wherever we are.

    Inside an allocation its nodes, and the tasks and CPUs that it was submitted with, beat the site's
    defaults.

    Raises:
        SlurmError: the cluster does not answer, or has no such partition.
        UsageError: the variables of an allocation cannot be understood.
    """
    options = SlurmOptions.of_site(asked.site, asked.flags)
    allocation = None if asked.submit else read_allocation(asked.environment)
    client = SlurmClient(asked.environment)
    facts: ClusterFacts | None = None
    notices: list[str] = []
    try:
        facts = network_facts(client) if allocation else look_around(client, options)
    except SlurmError as error:
        if not asked.dry_run or error.exit_code != 1:
            raise
        notices.append(f"{error}; nothing is checked against the cluster")
    if allocation is None:
        node_cpus = facts.node_cpus(asked.total_nodes or asked.site.def_nodes) if facts else 1
        return ClusterSurvey(asked.site, node_cpus, tuple(notices), options, facts)
    notices += _unreserved(client, allocation.job_id, options.resource)
    node_cpus = min((allocation.cpus_per_node or {"": 1}).values(), default=1)
    holder = _system_node(client, allocation, options)
    defaults = _defaults_of(allocation, asked.site)
    return ClusterSurvey(defaults, node_cpus, tuple(notices), options, facts, allocation, holder)


def _defaults_of(allocation: Allocation, site: Site) -> Site:
    return replace(
        site,
        def_nodes=len(allocation.nodes),
        def_tasks_per_node=allocation.tasks_per_node or site.def_tasks_per_node,
        def_cpus_per_task=allocation.cpus_per_task or site.def_cpus_per_task,
    )


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
