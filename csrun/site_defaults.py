"""What a site sets once for all its users: sizes of a default job, container, resources.

The values come from the environment under the names that the launch scripts of such sites have always used.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from csrun.errors import UsageError

DEFAULT_NODES = 1
DEFAULT_TASKS_PER_NODE = 2
"""The smallest job with a role each: one chief, one worker."""


@dataclass(frozen=True, slots=True)
class SiteDefaults:
    """A site's settings; empty strings where the site has set nothing.

    Attributes:
        nodes: nodes of a job that does not say otherwise.
        tasks_per_node: tasks on each of them.
        cpus_per_task: CPUs of each task; None where the site leaves that open.
        singularity_image: path of the container image.
        mount_dirs: comma list of directories that every container sees.
        gres_resource: the scheduler's name of the CS system.
        gres_node: the node that owns it, kept free of CPU-only jobs.
    """

    nodes: int = DEFAULT_NODES
    tasks_per_node: int = DEFAULT_TASKS_PER_NODE
    cpus_per_task: int | None = None
    singularity_image: str = ""
    mount_dirs: str = ""
    gres_resource: str = ""
    gres_node: str = ""


def site_defaults(environment: Mapping[str, str]) -> SiteDefaults:
    """Reads DEF_NODES, DEF_TASKS_PER_NODE, DEF_CPUS_PER_TASK, SINGULARITY_IMAGE, MOUNT_DIRS, GRES_*.

    DEF_TASKS and DEF_CPUS are accepted as short names of the second and third.

    Raises:
        UsageError: a number is no whole number of at least 1.
    """
    return SiteDefaults(
        nodes=_count(environment, "DEF_NODES") or DEFAULT_NODES,
        tasks_per_node=_count(environment, "DEF_TASKS_PER_NODE", "DEF_TASKS") or DEFAULT_TASKS_PER_NODE,
        cpus_per_task=_count(environment, "DEF_CPUS_PER_TASK", "DEF_CPUS"),
        singularity_image=environment.get("SINGULARITY_IMAGE", ""),
        mount_dirs=environment.get("MOUNT_DIRS", ""),
        gres_resource=environment.get("GRES_RESOURCE", ""),
        gres_node=environment.get("GRES_NODE", ""),
    )


def parse_count(text: str, minimum: int = 1) -> int | None:
    """The whole number that `text` spells in decimal digits; None if it is none or below `minimum`."""
    # int() alone would also take "1_0", " 1" and digits of other scripts.
    if not (text.isascii() and text.isdigit()) or len(text) > 9:
        return None
    value = int(text)
    return value if value >= minimum else None


def _count(environment: Mapping[str, str], *names: str) -> int | None:
    for name in names:
        text = environment.get(name, "").strip()
        if not text:
            continue
        value = parse_count(text)
        if value is None:
            raise UsageError(
                f"the environment variable {name} is {text!r}; expected a whole number of at least 1: "
                f"set it to one, or unset it"
            )
        return value
    return None
