"""Settings from the environment, under the names that launch scripts of such sites have always used. Pure."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping
from typing import Any

from csrun.schedulers.registry import check_name as check_launcher
from csrun.site import values
from csrun.site.model import CONTAINERS

VARIABLES: Mapping[str, tuple[str, ...]] = {
    "launcher": ("CSRUN_LAUNCHER",),
    "def_nodes": ("DEF_NODES",),
    "def_tasks_per_node": ("DEF_TASKS_PER_NODE", "DEF_TASKS"),
    "def_cpus_per_task": ("DEF_CPUS_PER_TASK", "DEF_CPUS"),
    "container": ("CSRUN_CONTAINER",),
    "python": ("CSRUN_PROGRAM_PYTHON",),
    "container_image": ("SINGULARITY_IMAGE",),
    "container_options": ("CSRUN_CONTAINER_OPTIONS",),
    "mount_dirs": ("MOUNT_DIRS",),
    "gres_resource": ("GRES_RESOURCE",),
    "gres_node": ("GRES_NODE",),
    "licence": ("CSRUN_LICENCE",),
    "cs_ip": ("CS_IP",),
    "partition": ("CSRUN_PARTITION",),
    "account": ("CSRUN_ACCOUNT",),
    "qos": ("CSRUN_QOS",),
    "time_limit": ("CSRUN_TIME_LIMIT",),
    "slurm_options": ("CSRUN_SLURM_OPTIONS",),
}
"""The variables of every field of `Site`; the first one that is set counts."""


def read_variables(
    environment: Mapping[str, str],
) -> tuple[dict[str, Any], dict[str, str], list[str]]:
    """What the environment sets: values by field, the variable's name by field, and all faults.

    A variable that is empty or blank sets nothing.
    """
    settings: dict[str, Any] = {}
    names: dict[str, str] = {}
    faults: list[str] = []
    for field, candidates in VARIABLES.items():
        name = next((name for name in candidates if environment.get(name, "").strip()), None)
        if name is None:
            continue
        text = environment[name].strip()
        try:
            settings[field] = _PARSERS[field](text)
        except ValueError as error:
            faults.append(f"the environment variable {name} is {text!r}; {error}: set it to one, or unset it")
        else:
            names[field] = name
    return settings, names, faults


def _count(text: str) -> int:
    value = values.parse_count(text)
    if value is None:
        raise ValueError("expected a whole number of at least 1")
    return value


def _one_of(words: tuple[str, ...]) -> Callable[[str], str]:
    def parse(text: str) -> str:
        if text not in words:
            raise ValueError(f"expected one of: {', '.join(words)}")
        return text

    return parse


def _options(text: str) -> tuple[str, ...]:
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise ValueError(f"expected arguments quoted as in a shell ({error})") from None
    return values.check_options(tuple(words))


def _directories(text: str) -> tuple[str, ...]:
    return values.check_mount_dirs(tuple(name.strip() for name in text.split(",") if name.strip()))


_PARSERS: Mapping[str, Callable[[str], Any]] = {
    "launcher": check_launcher,
    "def_nodes": _count,
    "def_tasks_per_node": _count,
    "def_cpus_per_task": _count,
    "container": _one_of(CONTAINERS),
    "python": values.check_path,
    "container_image": values.check_path,
    "container_options": _options,
    "mount_dirs": _directories,
    "gres_resource": values.check_gres,
    "gres_node": values.check_name,
    "licence": values.check_licence,
    "cs_ip": values.check_address,
    "partition": values.check_name,
    "account": values.check_name,
    "qos": values.check_name,
    "time_limit": values.check_time_limit,
    "slurm_options": _options,
}
