"""The section `flux` of the site file, the flags of the scheduler, and the arguments that both become."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from csrun.jobs.layout import JobLayout
from csrun.schedulers.base import Flag
from csrun.site import Site, setting
from csrun.site.values import check_argument, check_name, check_options
from csrun_flux.client import duration_seconds


def _text(text: str) -> str:
    return check_argument(text) if text else text


def check_duration(text: str) -> str:
    """Check a time limit; empty if not set."""
    if duration_seconds(text) is None:
        raise ValueError("expected minutes, or a number with s, m, h or d, for example 4h")
    return text


@dataclass(frozen=True, slots=True)
class FluxSettings:
    """The section `flux` of the site file."""

    queue: str = setting("Flux queue of all jobs.", "CSRUN_FLUX_QUEUE", check_name)
    bank: str = setting("Flux bank of all jobs.", "CSRUN_FLUX_BANK", check_name)
    time_limit: str = setting(
        "Time limit of all jobs: minutes, or 90s, 30m, 4h, 1d.", "CSRUN_FLUX_TIME_LIMIT", check_duration
    )
    requires: str = setting(
        "Constraint on the nodes of all jobs, for example the property of nodes that reach the CS system.",
        "CSRUN_FLUX_REQUIRES",
        _text,
    )
    options: tuple[str, ...] = setting(
        "Further arguments of flux run and flux batch.", "CSRUN_FLUX_OPTIONS", check_options, kind="arguments"
    )

    @classmethod
    def of_site(cls, site: Site) -> FluxSettings:
        """Return the section of a site."""
        return cls(**site.sections.get("flux", {}))


def _option(text: str) -> str:
    name = check_argument(text).partition("=")[0].lstrip("-")
    if name in ("nodes", "N", "ntasks", "n", "taskmap", "tasks-per-node", "exclusive", "x"):
        raise ValueError("expected an option that csrun_wse does not set itself: use its own flag")
    return text.lstrip("-")


FLAGS = (
    Flag("--queue", "NAME", "Flux queue.", check_name),
    Flag("--bank", "NAME", "Flux bank.", check_name),
    Flag("--time-limit", "LIMIT", "Time limit of a Flux job: minutes, or 90s, 30m, 4h, 1d.", check_duration),
    Flag("--requires", "CONSTRAINT", "Constraint on the nodes (flux-run(1), --requires).", _text),
    Flag("--dependency", "URI", "Start after another job: afterok:JOBID.", _text),
    Flag("--job-name", "NAME", "Name of the job.", check_name),
    Flag("--flux", "OPTION", "Another option of flux run and flux batch.", _option, repeated=True),
)


@dataclass(frozen=True, slots=True)
class FluxOptions:
    """Options of flux run and flux batch; empty strings leave them to Flux."""

    queue: str = ""
    bank: str = ""
    time_limit: str = ""
    requires: str = ""
    dependency: str = ""
    job_name: str = ""
    extra: tuple[str, ...] = ()

    @classmethod
    def of_site(cls, site: Site, flags: Mapping[str, str] | None = None) -> FluxOptions:
        """Combine the section of the site with flags, which take precedence."""
        given, section = flags or {}, FluxSettings.of_site(site)
        return cls(
            queue=given.get("--queue") or section.queue,
            bank=given.get("--bank") or section.bank,
            time_limit=given.get("--time-limit") or section.time_limit,
            requires=given.get("--requires") or section.requires,
            dependency=given.get("--dependency", ""),
            job_name=given.get("--job-name", ""),
            extra=(*section.options, *(f"--{line}" for line in given.get("--flux", "").splitlines())),
        )

    @property
    def arguments(self) -> tuple[str, ...]:
        """Arguments for every job."""
        named = {
            "--queue": self.queue,
            "--bank": self.bank,
            "--time-limit": self.time_limit,
            "--requires": self.requires,
            "--dependency": self.dependency,
        }
        return (*(f"{flag}={text}" for flag, text in named.items() if text), *self.extra)


def node_arguments(layout: JobLayout) -> tuple[str, ...]:
    """Return the arguments that request the nodes of a layout."""
    return (f"--nodes={layout.total_nodes}", "--exclusive")


def task_arguments(layout: JobLayout) -> tuple[str, ...]:
    """Return the arguments for the tasks of a layout, on the node of each (RFC 34)."""
    blocks: list[list[int]] = []
    for node in layout.nodes_of_tasks():
        if blocks and blocks[-1][0] == node:
            blocks[-1][2] += 1
        else:
            blocks.append([node, 1, 1, 1])
    taskmap = re.sub(r"\s", "", str(blocks))
    # Flux would end a job 30 s after its first task has ended; the launcher handles ended tasks.
    return (f"--ntasks={layout.num_tasks}", f"--taskmap=manual:{taskmap}", "--setopt=exit-timeout=none")
