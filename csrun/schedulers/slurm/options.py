"""Slurm options of a job other than nodes and tasks, from the site and from flags. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from csrun.schedulers.base import Flag
from csrun.site import Site, setting
from csrun.site.values import check_argument, check_name, check_options

ANY = "--slurm"

_GRES = re.compile(r"[A-Za-z_][\w-]*(:[A-Za-z_][\w.-]*)?(:[0-9]+)?")
_LICENCE = re.compile(r"[A-Za-z_][\w.@-]*([:=][0-9]+)?")
_TIME_LIMIT = re.compile(
    r"[0-9]+|[0-9]+:[0-5]?[0-9]|[0-9]+:[0-5]?[0-9]:[0-5]?[0-9]"
    r"|[0-9]+-[0-9]{1,2}(:[0-5]?[0-9]){0,2}|UNLIMITED|INFINITE",
    re.IGNORECASE,
)
_NAME = re.compile(r"[a-z][a-z-]*")
# Options that conflict with the launcher, with alternatives.
_REFUSED = {
    "array": "the elements of a job array would share one CS system, one id and one log directory. Submit "
    "a script of your own with 'sbatch --array=...' that calls csrun_wse: each element is a job then",
    **dict.fromkeys(
        ("nodes", "ntasks", "ntasks-per-node", "cpus-per-task", "distribution", "exclusive"),
        "--total-nodes, --tasks-per-node, --cpus-per-task and --cyclic decide it",
    ),
    **dict.fromkeys(
        ("output", "error", "input", "open-mode", "chdir"), "the launcher writes the logs: see --log-dir"
    ),
    **dict.fromkeys(("signal", "requeue", "no-requeue"), "--requeue and --warn-before decide it"),
    **dict.fromkeys(
        ("pty", "wait", "kill-on-bad-exit", "mpi", "overlap", "jobid", "het-group", "multi-prog"),
        "the launcher starts and ends the tasks",
    ),
}
_FLAGS = (
    *("time", "partition", "account", "qos", "dependency", "job-name", "mem", "nodelist", "exclude"),
    *("constraint", "gres", "reservation"),
)


def check_gres(text: str) -> str:
    """Check a generic resource and remove prefixes that sites use: "cs:1" for "--gres=gres:cs:1"."""
    resource = text.strip().removeprefix("--gres=").removeprefix("gres:").removeprefix("gres/")
    if resource and not _GRES.fullmatch(resource):
        raise ValueError("expected a Slurm resource as NAME, NAME:COUNT or NAME:TYPE:COUNT, for example cs:1")
    return resource


def check_licence(text: str) -> str:
    """Check a Slurm license with its count, and remove "--licenses="."""
    licence = text.strip().removeprefix("--licenses=")
    if licence and not _LICENCE.fullmatch(licence):
        raise ValueError("expected a Slurm license as NAME or NAME:COUNT, for example cs:1")
    return licence


def check_time_limit(text: str) -> str:
    """Check a time limit in a format of srun --time; empty if not set."""
    if text and not _TIME_LIMIT.fullmatch(text):
        raise ValueError(
            "expected a time limit as MINUTES, MINUTES:SECONDS, HOURS:MINUTES:SECONDS, DAYS-HOURS, "
            "DAYS-HOURS:MINUTES:SECONDS or UNLIMITED"
        )
    return text


@dataclass(frozen=True, slots=True)
class SlurmSettings:
    """Slurm's settings of the site."""

    gres_resource: str = setting(
        "Slurm's generic resource (gres) for the CS system, for example cs:1.",
        "GRES_RESOURCE",
        check_gres,
        query="--def-gres",
        harmless=True,
    )
    gres_node: str = setting(
        "The node that owns the CS system's resource, kept free of CPU-only jobs.",
        "GRES_NODE",
        check_name,
        query="--def-gres-node",
        harmless=True,
    )
    licence: str = setting(
        "Slurm license for the CS system if it is not a gres, for example cs:1.",
        "CSRUN_LICENCE",
        check_licence,
        harmless=True,
    )
    partition: str = setting(
        "Slurm partition of all jobs. Default: the cluster's default.",
        "CSRUN_PARTITION",
        check_name,
        harmless=True,
    )
    account: str = setting("Slurm account of all jobs.", "CSRUN_ACCOUNT", check_name, harmless=True)
    qos: str = setting("Slurm quality of service of all jobs.", "CSRUN_QOS", check_name, harmless=True)
    time_limit: str = setting(
        "Time limit of all jobs as Slurm takes it: 90 (minutes), 4:00:00, 1-12.",
        "CSRUN_TIME_LIMIT",
        check_time_limit,
        kind="minutes",
        harmless=True,
    )
    slurm_options: tuple[str, ...] = setting(
        "Further arguments of srun and sbatch.", "CSRUN_SLURM_OPTIONS", check_options, kind="arguments"
    )

    @classmethod
    def of_site(cls, site: Site) -> SlurmSettings:
        """Return Slurm's settings of a site."""
        return cls(**site.sections.get("slurm", {}))


def _value(text: str) -> str:
    return check_argument(text) if text else text


def _option(text: str) -> str:
    """Check one option of Slurm without its dashes: OPTION=VALUE or OPTION."""
    name, _, value = text.removeprefix("--").partition("=")
    if not _NAME.fullmatch(name):
        raise ValueError("expected a long option of srun and sbatch, for example comment=mine or nice=100")
    if name in _REFUSED:
        raise ValueError(f"which is not passed on: {_REFUSED[name]}")
    if name in _FLAGS:
        raise ValueError(f"expected the flag of that name: write --{name}={value or 'VALUE'}")
    return _value(text.removeprefix("--"))


def _array(text: str) -> str:
    if text:
        raise ValueError(f"which is refused: {_REFUSED['array']}")
    return text


FLAGS = (
    Flag(
        "--time",
        "LIMIT",
        "Time limit of a Slurm job: minutes, H:M:S or D-H:M.",
        check_time_limit,
        setting="time_limit",
    ),
    Flag("--partition", "NAME", "Slurm partition.", _value, setting="partition"),
    Flag("--account", "NAME", "Slurm account.", _value, setting="account"),
    Flag("--qos", "NAME", "Slurm quality of service.", _value, setting="qos"),
    Flag("--reservation", "NAME", "Slurm reservation.", _value),
    Flag("--dependency", "TYPE:JOB", "Start after other Slurm jobs, for example afterok:1234.", _value),
    Flag("--job-name", "NAME", "Name in Slurm's queue. Default: from the program.", _value),
    Flag("--mem", "SIZE", "Memory of each node, for example 64G; 0 is all of it.", _value),
    Flag("--nodelist", "NODES", "Nodes that the job must have.", _value),
    Flag("--exclude", "NODES", "Nodes that the job must not have.", _value),
    Flag("--constraint", "FEATURES", "Features that its nodes must have.", _value),
    Flag("--gres", "NAME:COUNT", "Generic resources of each node, in addition to the CS system's.", _value),
    Flag(
        ANY,
        "OPTION=VALUE",
        "Any other option of srun and sbatch, for example --slurm=nice=100; may be repeated.",
        _option,
        repeated=True,
        setting="slurm_options",
    ),
    Flag("--array", "INDEXES", "Refused: an element would not be a separate job.", _array, hidden=True),
)


@dataclass(frozen=True, slots=True)
class SlurmOptions:
    """Options of srun and sbatch; empty strings leave them to Slurm.

    Attributes:
        time_limit, partition, account, qos, dependency: values of --time and so on.
        reservation, mem, constraint, nodelist, exclude: values of the options with these names.
        job_name: of the job; empty for `csrun.schedulers.slurm.arguments.job_name`.
        own_gres: generic resources of every node, in addition to the CS system's.
        gres: generic resource of the CS system, such as "cs:1".
        gres_node: the node that owns it.
        licence: license of the CS system if it is not a gres, such as "cs:1".
        extra: further arguments of srun and sbatch.
    """

    time_limit: str = ""
    partition: str = ""
    account: str = ""
    qos: str = ""
    dependency: str = ""
    reservation: str = ""
    mem: str = ""
    constraint: str = ""
    nodelist: str = ""
    exclude: str = ""
    job_name: str = ""
    own_gres: str = ""
    gres: str = ""
    gres_node: str = ""
    licence: str = ""
    extra: tuple[str, ...] = ()

    @classmethod
    def of_site(cls, site: Site, flags: Mapping[str, str] | None = None) -> SlurmOptions:
        """Combine the options of the site with flags, which take precedence.

        Args:
            site: its settings.
            flags: values of `FLAGS`, by name.
        """
        given, settings = flags or {}, SlurmSettings.of_site(site)
        return cls(
            time_limit=given.get("--time") or settings.time_limit,
            partition=given.get("--partition") or settings.partition,
            account=given.get("--account") or settings.account,
            qos=given.get("--qos") or settings.qos,
            dependency=given.get("--dependency", ""),
            reservation=given.get("--reservation", ""),
            mem=given.get("--mem", ""),
            constraint=given.get("--constraint", ""),
            nodelist=given.get("--nodelist", ""),
            exclude=given.get("--exclude", ""),
            job_name=given.get("--job-name", ""),
            own_gres=given.get("--gres", ""),
            gres=settings.gres_resource,
            gres_node=settings.gres_node,
            licence=settings.licence,
            extra=(*settings.slurm_options, *(f"--{line}" for line in given.get(ANY, "").splitlines())),
        )

    def gres_arguments(self, *, with_system: bool) -> list[str]:
        """Return the option for generic resources of a node, with or without the CS system's."""
        wanted = [self.gres] if with_system and self.gres else []
        wanted += [self.own_gres] if self.own_gres else []
        return [f"--gres={','.join(wanted)}"] if wanted else []

    def exclude_arguments(self, *more: str) -> list[str]:
        """Return the option that excludes nodes."""
        names = [name for name in (*more, self.exclude) if name]
        return [f"--exclude={','.join(names)}"] if names else []

    @property
    def resource(self) -> str:
        """Generic resource or license of the CS system, such as "cs:1"; "" for none."""
        return self.gres or self.licence

    @property
    def arguments(self) -> tuple[str, ...]:
        """Arguments for every component, and for every other job of this site."""
        named = {
            "--partition": self.partition,
            "--account": self.account,
            "--qos": self.qos,
            "--time": self.time_limit,
            "--dependency": self.dependency,
            "--reservation": self.reservation,
            "--mem": self.mem,
            "--constraint": self.constraint,
        }
        return (*(f"{flag}={text}" for flag, text in named.items() if text), *self.extra)
