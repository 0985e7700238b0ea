"""csrun doctor: whether a run would work here, and what to do if not."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator

import click

from csrun.commands.flags import count, working_directory
from csrun.commands.scheduler_flags import launcher_option
from csrun.console import STDOUT, wants_color, write_text
from csrun.doctor import Finding, line, machine, to_json, verdict
from csrun.schedulers.base import Examination
from csrun.schedulers.registry import choose, schedulers
from csrun.site import SiteError
from csrun.site.loading import load_site
from csrun.tasks.environment import this_toolkit

EXIT_WOULD_FAIL = 1


@click.command("doctor")
@launcher_option("Check this one.")
@click.option("--cs-ip", metavar="IP[:PORT]", default="", help="Check this CS system. Default: the site's.")
@click.option("--nodes", callback=count(), metavar="N", help="Run a probe on N nodes. Default: def_nodes.")
@click.option("--no-probe", is_flag=True, help="Start nothing on the nodes.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def doctor(launcher: str | None, cs_ip: str, nodes: int | None, no_probe: bool, as_json: bool) -> int:
    """Checks whether a run would work: site file, Python, container, CS system, scheduler, and nodes.

    Every check prints a line, followed by advice where something is wrong. The exit code is 0 if a run
    would work, otherwise 1. On a cluster a small job checks the nodes themselves for a few seconds.
    """
    findings = []
    colored = wants_color(STDOUT)
    for finding in examine(launcher, cs_ip, nodes, probe=not no_probe):
        findings.append(finding)
        if not as_json:
            write_text(STDOUT, line(finding, colored))
    write_text(STDOUT, json.dumps(to_json(findings), indent=2) + "\n" if as_json else verdict(findings))
    return EXIT_WOULD_FAIL if any(finding.level == "fail" for finding in findings) else 0


def examine(launcher: str | None, cs_ip: str, nodes: int | None, *, probe: bool) -> Iterator[Finding]:
    """Yield the findings of all checks, as `csrun doctor` prints them."""
    try:
        loaded = load_site(os.environ)
    except SiteError as error:
        for message in error.errors:
            text, _, advice = message.partition("; expected ")
            yield Finding("site", "fail", text, f"expected {advice}" if advice else "correct it")
        return
    site, toolkit, cwd = loaded.site, this_toolkit(), working_directory()
    scheduler = choose(launcher, site, os.environ)
    others: list[tuple[str, str]] = []
    if not site.launcher and not scheduler.has_nodes:  # jobs run on this machine by default
        with_nodes = [each for each in schedulers() if each.has_nodes]
        found = [each for each in with_nodes if each.presence(site, os.environ) != "absent"]
        others = [(each.title, each.name) for each in found]
    yield machine.site_finding(loaded, scheduler.name, others)
    if not scheduler.has_nodes or site.container == "none":  # otherwise only the nodes need it
        yield machine.python_finding(os.environ, toolkit, site, cwd)
        yield machine.container_finding(os.environ, toolkit, site, cwd)
    yield from machine.system_findings(cs_ip or site.system_addresses, toolkit, site.certs)
    yield from machine.certificate_findings(site.certs)
    yield from machine.logs_finding(cwd)
    yield from scheduler.checks(Examination(site, toolkit, cwd, os.environ, nodes, probe))
