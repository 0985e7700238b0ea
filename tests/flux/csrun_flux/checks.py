"""Checks of `csrun doctor` on a Flux instance: its queues, its nodes, and a probe on them."""

from __future__ import annotations

import signal
from collections.abc import Iterator

from csrun.doctor import Finding, machine
from csrun.doctor.nodes import NodeAccess, probe_findings, probe_nodes
from csrun.schedulers.base import Examination
from csrun.schedulers.hostlist import compress_hostlist
from csrun.site import Site
from csrun_flux.client import FluxClient, FluxError, Resources, shorten_error, submission_environment
from csrun_flux.options import FluxOptions, FluxSettings
from csrun_flux.place import PLACE_ARGUMENTS, read_place


def checks(examination: Examination) -> Iterator[Finding]:
    """Check whether jobs of the site would run on its instance."""
    site, client = examination.site, FluxClient(examination.environment)
    try:
        version, resources, queues = client.version(), client.resources(), client.queues()
    except FluxError as error:
        text, _, advice = str(error).partition("; expected ")
        yield Finding("Flux", "fail", text, f"expected {advice}")
        return
    yield Finding("Flux", "ok", f"{version}, {len(resources['up'].nodes)} nodes")
    yield from queue_findings(site, queues)
    yield from node_findings(site, resources)
    yield machine.port_finding(None)
    if not examination.probe:
        return
    count = min(examination.nodes or site.def_nodes, len(resources["up"].nodes))
    prefix = (
        *("flux", "run", f"--nodes={count}", f"--ntasks={count}", "--cwd=/", "--job-name=csrun-doctor"),
        *("--exclusive", "--input=/dev/null"),
        *FluxOptions.of_site(site).arguments,
        *PLACE_ARGUMENTS,
    )
    access = NodeAccess(
        prefix=prefix,
        count=count,
        environment=submission_environment(examination.environment),
        read_place=read_place,
        ports=None,
        ports_setting="",
        # flux run waits for free nodes, without a message, until it is interrupted.
        is_busy=lambda complaint: not complaint.strip() or "ctrl-C" in complaint,
        shorten=shorten_error,
        example="flux run --nodes=1 hostname",
        end_signals=(signal.SIGINT, signal.SIGINT),
    )
    needed = [str(examination.toolkit.python), *site.mount_dirs]
    needed += [site.container_image] if site.container_image else []
    yield from probe_findings(probe_nodes(access, examination.toolkit, examination.cwd, needed), access)


def queue_findings(site: Site, queues: tuple[str, ...]) -> Iterator[Finding]:
    """Check that the queue of the site exists."""
    queue = FluxSettings.of_site(site).queue
    if queue and queue not in queues:
        names = ", ".join(queues) or "none: leave it out"
        text = f"unknown queue {queue!r}"
        yield Finding("queue", "fail", text, f"set 'queue' of the site's section 'flux' to one of: {names}")
    else:
        yield Finding("queue", "ok", queue or "the default queue")


def node_findings(site: Site, resources: dict[str, Resources]) -> Iterator[Finding]:
    """Check that a job with the site's default layout fits on the usable nodes."""
    up, down = resources["up"], resources.get("down", Resources((), 0))
    if down.nodes:
        text = f"{len(down.nodes)} cannot be used: {compress_hostlist(sorted(down.nodes))}"
        yield Finding("nodes", "note", text, "'flux resource status' explains it; jobs run on the others")
    else:
        yield Finding("nodes", "ok", f"all {len(up.nodes)} can be used")
    wanted = site.def_tasks_per_node * (site.def_cpus_per_task or 1)
    size = f"{site.def_nodes} nodes x {site.def_tasks_per_node} tasks"
    if site.def_nodes > len(up.nodes):
        text = f"def_nodes is {site.def_nodes}, and {len(up.nodes)} nodes can be used"
        yield Finding("default job", "fail", text, "lower def_nodes of the site")
    elif wanted > up.node_cores:
        text = f"{size} needs {wanted} cores on a node, and the nodes have {up.node_cores}"
        yield Finding("default job", "fail", text, "lower def_tasks_per_node or def_cpus_per_task")
    else:
        yield Finding("default job", "ok", f"{size} fits")
    text = "Flux has no resource for the CS system: two jobs may get it at the same time"
    yield Finding("CS resource", "note", text, "start jobs with --wait, which waits for a busy CS system")
