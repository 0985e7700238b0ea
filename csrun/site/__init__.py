"""Settings of a site for all its users: launcher, default layout, container, CS system, and schedulers' own.

A scheduler declares its settings with a dataclass whose fields are made by `setting`. `loading` builds a
`Site` from the site file and the environment; `file` reads the site file.
"""

# Every launcher imports this module, so it is plain data. `file` imports pydantic and YAML, which takes
# longer than everything else that a launcher does: it is imported only if a site file exists.

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from csrun.errors import CsrunError

Container = Literal["none", "singularity", "apptainer", "charliecloud"]
CONTAINERS: tuple[Container, ...] = ("none", "singularity", "apptainer", "charliecloud")

# Variable with the path of the site file, which precedes all searched places.
SITE_CONFIG_VARIABLE = "CSRUN_SITE_CONFIG"


@dataclass(frozen=True, slots=True)
class Site:
    """A site's settings. A field has the name of its key in the site file.

    Attributes:
        launcher: name of a scheduler in `csrun.schedulers.registry`; None to let its `choose` decide.
        def_nodes: default number of nodes of a job.
        def_tasks_per_node: default number of tasks on each node; 2 are the smallest job with both roles.
        def_cpus_per_task: default number of CPUs of each task; None to leave it open.
        max_restarts: how often a job restarts each worker whose process dies.
        container: runtime of programs; "none" for the environment of `python`.
        python: absolute path of the interpreter of programs; empty for the toolkit's.
        container_image: absolute path of the image: a file, for charliecloud a directory too.
        container_options: further arguments of the container runtime, in front of the image.
        mount_dirs: absolute directories that every container mounts.
        cs_ip: address of the CS system, in the form of the programs' --cs_ip.
        systems: addresses of several CS systems, of which a job uses the first free one.
        peer_timeout_s: seconds of silence after which a peer counts as lost; None for the default.
        certs: absolute directory of the user's certificate for TLS with the CS system; empty for none.
        sections: settings of schedulers that are set, by name of the scheduler and of the setting.
        locked: places ("FILE:LINE") that lock a key for later layers and flags, by key.
    """

    launcher: str | None = None
    def_nodes: int = 1
    def_tasks_per_node: int = 2
    def_cpus_per_task: int | None = None
    max_restarts: int = 3
    container: Container = "none"
    python: str = ""
    container_image: str = ""
    container_options: tuple[str, ...] = ()
    mount_dirs: tuple[str, ...] = ()
    cs_ip: str = ""
    systems: tuple[str, ...] = ()
    peer_timeout_s: float | None = None
    certs: str = ""
    sections: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    locked: Mapping[str, str] = field(default_factory=dict)

    @property
    def system_addresses(self) -> str:
        """The CS systems of a program that names none, separated by commas; empty for none."""
        return self.cs_ip or ",".join(self.systems)


@dataclass(frozen=True, slots=True)
class Setting:
    """A setting of a scheduler.

    Attributes:
        description: for the schema of the site file, in full sentences.
        variable: environment variable that takes precedence over the site file.
        check: returns the value, or raises ValueError with the rest of a sentence: "expected ...".
        kind: "text"; "minutes", a text that may be a whole number in the file; "arguments", a list of texts,
            in the variable quoted as in a shell.
        query: hidden flag of csrun_cpu that prints the value; "" for none.
        harmless: a project's file may set it without the user's consent (`csrun.site.project`): it neither
            chooses what runs nor where data goes.
    """

    description: str
    variable: str
    check: Callable[[Any], Any]
    kind: Literal["text", "minutes", "arguments"] = "text"
    query: str = ""
    harmless: bool = False


def setting(
    description: str,
    variable: str,
    check: Callable[[Any], Any],
    kind: Literal["text", "minutes", "arguments"] = "text",
    query: str = "",
    harmless: bool = False,
) -> Any:
    """Declare a field of a scheduler's settings, empty by default. The arguments are those of `Setting`."""
    about = Setting(description, variable, check, kind, query, harmless)
    return field(default=() if kind == "arguments" else "", metadata={"setting": about})


class SiteError(CsrunError):
    """The settings are invalid; the message lists all errors with their places, one per line."""

    exit_code = 2

    def __init__(self, errors: list[str]) -> None:
        self.errors = errors
        super().__init__("\n".join(errors))
