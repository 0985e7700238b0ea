"""csrun doctor: whether a run would work here, and what to do if not."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

import click

from csrun.commands.flags import count, working_directory
from csrun.console import STDOUT, wants_colour, write_text
from csrun.doctor import here
from csrun.doctor.findings import Finding, line, to_json, verdict
from csrun.environment import Toolkit, this_toolkit
from csrun.site.loading import load_site
from csrun.site.model import LAUNCHERS, Launcher, Site, SiteError, choose_launcher

EXIT_WOULD_FAIL = 1


@click.command("doctor")
@click.option("--launcher", type=click.Choice(LAUNCHERS), help="Check this one. Default: the site's.")
@click.option("--cs-ip", metavar="IP[:PORT]", default="", help="Check this CS system. Default: the site's.")
@click.option("--nodes", callback=count(), metavar="N", help="Run a probe on N nodes. Default: def_nodes.")
@click.option("--no-probe", is_flag=True, help="Start nothing on the nodes.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def doctor(launcher: Launcher | None, cs_ip: str, nodes: int | None, no_probe: bool, as_json: bool) -> int:
    """Checks whether a run would work: site file, Python, container, CS system, Slurm, and the nodes.

    Every check prints a line, and below it what to do where something is wrong. The exit code is 0 if a run
    would work, else 1. On a cluster a small job looks at the nodes themselves, for a few seconds.
    """
    findings = []
    coloured = wants_colour(STDOUT)
    for finding in _examine(launcher, cs_ip, nodes, probe=not no_probe):
        findings.append(finding)
        if not as_json:
            write_text(STDOUT, line(finding, coloured))
    write_text(STDOUT, json.dumps(to_json(findings), indent=2) + "\n" if as_json else verdict(findings))
    return EXIT_WOULD_FAIL if any(finding.level == "fail" for finding in findings) else 0


def _examine(launcher: Launcher | None, cs_ip: str, nodes: int | None, *, probe: bool) -> Iterator[Finding]:
    try:
        loaded = load_site(os.environ)
    except SiteError as error:
        for fault in error.faults:
            text, _, advice = fault.partition("; expected ")
            yield Finding("site", "fail", text, f"expected {advice}" if advice else "correct it")
        return
    site, toolkit, cwd = loaded.site, this_toolkit(), working_directory()
    chosen = choose_launcher(launcher, site, os.environ)
    yield here.site_finding(loaded, chosen)
    if chosen != "slurm" or site.container == "none":  # else only the nodes need to have it
        yield here.python_finding(os.environ, toolkit, site, cwd)
        yield here.container_finding(os.environ, toolkit, site, cwd)
    yield here.system_finding(cs_ip or site.cs_ip, toolkit)
    yield from here.logs_finding(cwd)
    if chosen == "slurm":
        yield from _examine_cluster(site, toolkit, cwd, nodes, probe=probe)
    else:
        yield here.port_finding(None)


def _examine_cluster(
    site: Site, toolkit: Toolkit, cwd: Path, nodes: int | None, *, probe: bool
) -> Iterator[Finding]:
    # Only here: a site without Slurm needs none of it.
    from csrun.doctor import cluster
    from csrun.doctor import nodes as on_nodes
    from csrun.schedulers.slurm.client import SlurmClient, submission_environment
    from csrun.schedulers.slurm.errors import SlurmError
    from csrun.schedulers.slurm.facts import port_range
    from csrun.schedulers.slurm.options import SlurmOptions

    client = SlurmClient(os.environ)
    try:
        configuration = client.configuration()
        partitions, everything, licences = client.partitions(), client.nodes(), client.licences()
    except SlurmError as error:
        text, _, advice = str(error).partition("; expected ")
        yield Finding("Slurm", "fail", text, f"expected {advice}")
        return
    version = configuration.get("SLURM_VERSION", "of unknown version")
    yield Finding("Slurm", "ok", f"{version}, cluster {configuration.get('ClusterName', '')}")
    yield from cluster.partition_findings(site, partitions)
    partition = cluster.job_partition(site, partitions)
    members = [node for node in everything if partition and node.partition == partition.name]
    if members:
        yield from cluster.node_findings(site, members)
        yield from cluster.resource_findings(site, members, licences)
    ports = port_range(configuration.get("SrunPortRange", ""))
    yield here.port_finding(ports)
    if site.container != "none" and not (probe and members):
        text = "not checked: only the nodes need to have runtime and image"
        yield Finding("container", "note", text, "leave --no-probe out")
    if probe and members:
        amount = min(nodes or site.def_nodes, len(members))
        needed = [str(toolkit.python), *site.mount_dirs]
        needed += [site.container_image] if site.container_image else []
        options = SlurmOptions.of_site(site)
        if site.container != "none":
            srun, own = on_nodes.srun_words(1, options), submission_environment(os.environ)
            yield here.container_finding(own, toolkit, site, cwd, srun)
            yield here.python_finding(own, toolkit, site, cwd, srun)
        run = on_nodes.probe_nodes(amount, options, os.environ, toolkit, cwd, needed, ports)
        yield from on_nodes.node_findings(run, amount)
