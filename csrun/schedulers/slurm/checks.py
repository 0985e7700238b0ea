"""What the doctor asks about a cluster: what Slurm says of itself, and what its nodes are like."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from csrun.doctor import here
from csrun.doctor.findings import Finding
from csrun.schedulers.base import Examination
from csrun.schedulers.slurm import cluster_checks, node_checks
from csrun.schedulers.slurm.client import Node, SlurmClient, submission_environment
from csrun.schedulers.slurm.errors import SlurmError
from csrun.schedulers.slurm.facts import port_range
from csrun.schedulers.slurm.options import SlurmOptions


def checks(examination: Examination) -> Iterator[Finding]:
    """Whether jobs of the site would run on its cluster."""
    site, client = examination.site, SlurmClient(examination.environment)
    try:
        configuration = client.configuration()
        partitions, everything, licences = client.partitions(), client.nodes(), client.licences()
    except SlurmError as error:
        text, _, advice = str(error).partition("; expected ")
        yield Finding("Slurm", "fail", text, f"expected {advice}")
        return
    version = configuration.get("SLURM_VERSION", "of unknown version")
    yield Finding("Slurm", "ok", f"{version}, cluster {configuration.get('ClusterName', '')}")
    yield from cluster_checks.partition_findings(site, partitions)
    partition = cluster_checks.job_partition(site, partitions)
    members = [node for node in everything if partition and node.partition == partition.name]
    if members:
        yield from cluster_checks.node_findings(site, members)
        yield from cluster_checks.resource_findings(site, members, licences)
    ports = port_range(configuration.get("SrunPortRange", ""))
    yield here.port_finding(ports, "Slurm's SrunPortRange")
    if examination.probe and members:
        yield from _on_nodes(examination, members, ports)
    elif site.container != "none":
        text = "not checked: only the nodes need to have runtime and image"
        yield Finding("container", "note", text, "leave --no-probe out")


def _on_nodes(
    examination: Examination, members: Sequence[Node], ports: tuple[int, int] | None
) -> Iterator[Finding]:
    site, toolkit, cwd = examination.site, examination.toolkit, examination.cwd
    count = min(examination.nodes or site.def_nodes, len(members))
    needed = [str(toolkit.python), *site.mount_dirs]
    needed += [site.container_image] if site.container_image else []
    options = SlurmOptions.of_site(site)
    own = submission_environment(examination.environment)
    if site.container != "none":
        node = here.Elsewhere(node_checks.srun_words(1, options), node_checks.is_busy, node_checks.SUMMARY)
        yield here.container_finding(own, toolkit, site, cwd, node)
        yield here.python_finding(own, toolkit, site, cwd, node)
    run = node_checks.probe_nodes(count, options, own, toolkit, cwd, needed, ports)
    yield from node_checks.node_findings(run, count)
