"""Survey of cluster and allocation before the layout of a job is decided."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from cs_toolkit.errors import UsageError
from csrun.jobs.layout import JobLayout
from csrun.schedulers.base import Asked, Survey
from csrun.schedulers.slurm.allocation import Allocation, read_allocation
from csrun.schedulers.slurm.client import Partition, SlurmClient, SlurmError, SlurmRequestError, limit_seconds
from csrun.schedulers.slurm.options import SlurmOptions
from csrun.schedulers.slurm.queue import holders, missing_nodes_sentence


@dataclass(frozen=True, slots=True)
class ClusterFacts:
    """Properties of the cluster.

    Attributes:
        partition: of the job.
        cpus: number of CPUs for jobs of each of its nodes, in descending order.
        resources: names of all generic resources there, such as "cs".
        ports: range of TCP ports of the submitting host that nodes may connect to; None for any.
        loopback: the whole cluster is this machine.
        out_of_use: state of its nodes on which no job can start at present.
    """

    partition: str = ""
    cpus: tuple[int, ...] = ()
    resources: frozenset[str] = frozenset()
    ports: tuple[int, int] | None = None
    loopback: bool = False
    out_of_use: tuple[str, ...] = ()

    def node_cpus(self, nodes: int) -> int:
        """Return the number of CPUs that each of the `nodes` largest nodes has."""
        return self.cpus[min(nodes, len(self.cpus)) - 1] if self.cpus else 1

    def notice(self, total_nodes: int) -> str | None:
        """Return a notice about a job that must wait for nodes that are out of use; None if it need not."""
        everything = len(self.cpus)
        usable = everything - len(self.out_of_use)
        if not usable < total_nodes <= everything:
            return None
        return (
            f"the job will wait: {missing_nodes_sentence(total_nodes, usable, everything, self.out_of_use)}"
        )

    def check(self, layout: JobLayout, options: SlurmOptions) -> None:
        """Refuse a job that would wait in the queue forever.

        Raises:
            UsageError: it needs more nodes than the partition has, or more CPUs than a node has.
            SlurmRequestError: the generic resource does not exist.
        """
        if layout.total_nodes > len(self.cpus):
            raise UsageError(
                f"--total-nodes={layout.total_nodes}: the partition {self.partition!r} has {len(self.cpus)} "
                f"nodes; expected no more: lower --total-nodes, or choose another --partition"
            )
        per_node = self.node_cpus(layout.total_nodes)
        wanted = layout.tasks_per_node * (layout.cpus_per_task or 1)
        if wanted > per_node:
            each = f" with --cpus-per-task={layout.cpus_per_task}" if layout.cpus_per_task else ""
            raise UsageError(
                f"--tasks-per-node={layout.tasks_per_node}{each} needs {wanted} CPUs on a node, and the "
                f"nodes of the partition {self.partition!r} have {per_node}; expected no more: lower one of "
                f"them (defaults: 'csrun config show')"
            )
        name = options.gres.partition(":")[0]
        if name and name not in self.resources:
            existing = ", ".join(sorted(self.resources)) or "none"
            raise SlurmRequestError(
                f"the partition {self.partition!r} has no generic resource {name!r} (it has: {existing}); "
                f"expected the one of the CS system: correct 'gres_resource' of the site configuration"
            )


def survey_cluster(client: SlurmClient, options: SlurmOptions) -> ClusterFacts:
    """Query the cluster.

    Raises:
        SlurmError: it does not answer, the partition or node does not exist, or the time limit is too long.
    """
    partitions = client.partitions()
    named = options.partition or next((each.name for each in partitions if each.default), "")
    # "--partition=a,b" lets Slurm choose.
    wanted = set(named.split(",")) if named else {each.name for each in partitions}
    missing = wanted - {each.name for each in partitions}
    if missing:
        raise SlurmRequestError(
            f"--partition: there is no partition {', '.join(map(repr, sorted(missing)))}; expected one of: "
            f"{', '.join(each.name for each in partitions)}"
        )
    _check_time(options, [each for each in partitions if each.name in wanted])
    everything = client.nodes()
    nodes = {node.name: node for node in everything if node.partition in wanted}
    if options.gres_node and options.gres_node not in {node.name for node in everything}:
        raise SlurmRequestError(
            f"there is no node {options.gres_node!r}; expected the owner of the CS system as 'sinfo -N' "
            f"lists it: correct 'gres_node' of the site configuration or GRES_NODE"
        )
    network = network_facts(client)
    for_jobs = client.cpus_for_jobs()
    cpus = {name: for_jobs.get(name, node.cpus) for name, node in nodes.items()}
    return replace(
        network,
        partition=named,
        cpus=tuple(sorted(cpus.values(), reverse=True)),
        resources=frozenset(
            item.partition(":")[0] for node in nodes.values() for item in node.resources.split(",") if item
        ),
        out_of_use=tuple(node.trouble for node in nodes.values() if not node.usable),
    )


def whole_node_cpus(client: SlurmClient, options: SlurmOptions, partition: str) -> int | None:
    """Return the number of CPUs to request for a task on a separate node; None if unknown.

    Most nodes have that number; those with fewer CPUs are then not used.

    Args:
        client: of the cluster.
        options: with the `gres_node`, which is not counted.
        partition: names separated by commas; "" for all.

    Raises:
        SlurmError: the cluster does not answer.
    """
    # Without a number `srun --exclusive` reserves the node and gives the task one CPU, to which most sites
    # bind it.
    cpus = client.cpus_for_jobs()
    wanted = set(partition.split(",")) if partition else None
    names = {node.name for node in client.nodes() if wanted is None or node.partition in wanted}
    counts = Counter(cpus[name] for name in names - {options.gres_node} if name in cpus)
    return max(counts, key=lambda count: (counts[count], count), default=None)


def _check_time(options: SlurmOptions, partitions: Sequence[Partition]) -> None:
    """Refuse a time limit that no partition allows."""
    # Slurm accepts such a job unless the site has set EnforcePartLimits, and it waits forever.
    asked_s = limit_seconds(options.time_limit)
    if not options.time_limit or asked_s is None or options.qos:  # a QOS may allow more
        return
    limits = {each.name: limit_seconds(each.time_limit) for each in partitions}
    if partitions and all(limit_s is not None and limit_s < asked_s for limit_s in limits.values()):
        allowed = ", ".join(f"{each.name} {each.time_limit}" for each in partitions)
        raise SlurmRequestError(
            f"--time={options.time_limit} is more than the partition allows ({allowed}); expected no more: "
            f"lower it, or choose another --partition"
        )


def network_facts(client: SlurmClient) -> ClusterFacts:
    """Query only how nodes reach this machine, which is sufficient inside an allocation.

    Raises:
        SlurmError: the cluster does not answer.
    """
    configuration = client.configuration()
    hosts = [text for name, text in configuration.items() if name.startswith("SlurmctldHost")]
    # In a cluster on one machine the controller uses the loopback.
    loopback = bool(hosts) and all("(127." in text or text.startswith("localhost") for text in hosts)
    return ClusterFacts(ports=port_range(configuration.get("SrunPortRange", "")), loopback=loopback)


def port_range(text: str) -> tuple[int, int] | None:
    """Parse SrunPortRange of slurm.conf into first and last port; None for any port ("0-0")."""
    first, _, last = text.partition("-")
    if not (first.isdigit() and last.isdigit()) or int(first) == 0:
        return None
    return int(first), int(last)


@dataclass(frozen=True)
class ClusterSurvey(Survey):
    """The survey of cluster and allocation.

    Attributes:
        options: of the job, other than nodes and tasks.
        facts: of the cluster; None if unknown, then nothing is checked.
        allocation: of this job; None if srun or sbatch will allocate nodes.
        system_node: node of the allocation that holds the CS system; "" for its first node.
    """

    options: SlurmOptions = field(default_factory=SlurmOptions)
    facts: ClusterFacts | None = None
    allocation: Allocation | None = None
    system_node: str = ""


def survey(asked: Asked) -> ClusterSurvey:
    """Query the cluster, and read the current allocation unless the job will be submitted.

    Inside an allocation, its nodes, and the tasks and CPUs with which it was submitted, replace the defaults
    of the site.

    Raises:
        SlurmError: the cluster does not answer, or has no such partition.
        UsageError: the variables of the allocation are invalid.
    """
    options = SlurmOptions.of_site(asked.site, asked.flags)
    allocation = None if asked.submit else read_allocation(asked.environment)
    client = SlurmClient(asked.environment)
    facts: ClusterFacts | None = None
    notices: list[str] = []
    try:
        facts = network_facts(client) if allocation else survey_cluster(client, options)
    except SlurmError as error:
        if not asked.dry_run or error.exit_code != 1:
            raise
        notices.append(f"{error}; nothing is checked against the cluster")
    if allocation is None:
        total_nodes = asked.total_nodes or asked.site.def_nodes
        node_cpus = facts.node_cpus(total_nodes) if facts else 1
        notices += filter(None, [facts.notice(total_nodes)] if facts else [])
        return ClusterSurvey(asked.site, node_cpus, tuple(notices), options, facts)
    notices += _check_system_is_held(client, allocation.job_id, options.resource)
    node_cpus = min((allocation.cpus_per_node or {"": 1}).values(), default=1)
    holder = _system_node(client, allocation, options)
    defaults = replace(
        asked.site,
        def_nodes=len(allocation.nodes),
        def_tasks_per_node=allocation.tasks_per_node or asked.site.def_tasks_per_node,
        def_cpus_per_task=allocation.cpus_per_task or asked.site.def_cpus_per_task,
    )
    return ClusterSurvey(defaults, node_cpus, tuple(notices), options, facts, allocation, holder)


def _check_system_is_held(client: SlurmClient, job_id: str, resource: str) -> list[str]:
    """Return a notice if the job does not hold the CS system, so that other jobs may get it, too."""
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
    """Return the node of an allocation that owns the CS system; "" if unknown."""
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
