"""The values of settings: what each may look like, and those that come from the environment."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Mapping
from typing import Any

from csrun.schedulers.registry import check_name as check_launcher
from csrun.site.model import CONTAINERS

MAX_COUNT = 10**9 - 1
_GRES = re.compile(r"[A-Za-z_][\w-]*(:[A-Za-z_][\w.-]*)?(:[0-9]+)?")
_LICENCE = re.compile(r"[A-Za-z_][\w.@-]*([:=][0-9]+)?")
_TIME_LIMIT = re.compile(
    r"[0-9]+|[0-9]+:[0-5]?[0-9]|[0-9]+:[0-5]?[0-9]:[0-5]?[0-9]"
    r"|[0-9]+-[0-9]{1,2}(:[0-5]?[0-9]){0,2}|UNLIMITED|INFINITE",
    re.IGNORECASE,
)
_NAME = re.compile(r"[^\s,]+")


def parse_count(text: str, minimum: int = 1) -> int | None:
    """The whole number that `text` spells in decimal digits; None if it is none or below `minimum`."""
    # int() alone would also take "1_0", " 1" and digits of other scripts.
    if not (text.isascii() and text.isdigit()) or len(text) > len(str(MAX_COUNT)):
        return None
    value = int(text)
    return value if value >= minimum else None


def check_path(text: str) -> str:
    """An absolute path; empty: not set. A relative one would mean another file in every directory."""
    if text and (not text.startswith("/") or not text.isprintable()):
        raise ValueError("expected an absolute path, one that starts with '/'")
    return text


def check_mount_dir(text: str) -> str:
    """An absolute path that a comma list and a `-B` or `-b` argument can hold."""
    if not check_path(text) or "," in text or ":" in text:
        raise ValueError("expected the absolute path of a directory, without ',' and ':'")
    return text


def check_gres(text: str) -> str:
    """A generic resource without the prefixes that sites put in front: "cs:1" for "--gres=gres:cs:1"."""
    resource = text.strip().removeprefix("--gres=").removeprefix("gres:").removeprefix("gres/")
    if resource and not _GRES.fullmatch(resource):
        raise ValueError("expected a Slurm resource as NAME, NAME:COUNT or NAME:TYPE:COUNT, for example cs:1")
    return resource


def check_licence(text: str) -> str:
    """A Slurm licence with its count, without "--licenses="."""
    licence = text.strip().removeprefix("--licenses=")
    if licence and not _LICENCE.fullmatch(licence):
        raise ValueError("expected a Slurm licence as NAME or NAME:COUNT, for example cs:1")
    return licence


def check_name(text: str) -> str:
    """One name as Slurm takes it; empty: not set."""
    if text and not _NAME.fullmatch(text):
        raise ValueError("expected one name, without blanks and commas")
    return text


def check_address(text: str) -> str:
    """`HOST` or `HOST:PORT`; empty: not set."""
    host, colon, port = text.partition(":")
    if text and (not _NAME.fullmatch(host) or (colon and not 1 <= (parse_count(port) or 0) <= 65535)):
        raise ValueError("expected HOST or HOST:PORT, for example 192.0.2.7:9000")
    return text


def check_time_limit(text: str) -> str:
    """A time as srun --time takes it; empty: not set."""
    if text and not _TIME_LIMIT.fullmatch(text):
        raise ValueError(
            "expected a time limit as MINUTES, MINUTES:SECONDS, HOURS:MINUTES:SECONDS, DAYS-HOURS, "
            "DAYS-HOURS:MINUTES:SECONDS or UNLIMITED"
        )
    return text


def check_argument(text: str) -> str:
    """One word of a command line: not empty, no control characters."""
    if not text or not text.isprintable():
        raise ValueError("expected one argument of a command line, without control characters")
    return text


def check_options(words: tuple[str, ...]) -> tuple[str, ...]:
    """Arguments that may stand between a program's name and the command that it runs."""
    for word in words:
        check_argument(word)
    if words and not words[0].startswith("-"):
        raise ValueError(f"expected options: the first one, {words[0]!r}, does not start with '-'")
    if "--" in words:
        raise ValueError("expected options without '--', which would end them")
    return words


def check_mount_dirs(directories: tuple[str, ...]) -> tuple[str, ...]:
    """Absolute directories, each once, in their order."""
    return tuple(dict.fromkeys(check_mount_dir(directory) for directory in directories))


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
    value = parse_count(text)
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
    return check_options(tuple(words))


def _directories(text: str) -> tuple[str, ...]:
    return check_mount_dirs(tuple(name.strip() for name in text.split(",") if name.strip()))


_PARSERS: Mapping[str, Callable[[str], Any]] = {
    "launcher": check_launcher,
    "def_nodes": _count,
    "def_tasks_per_node": _count,
    "def_cpus_per_task": _count,
    "container": _one_of(CONTAINERS),
    "python": check_path,
    "container_image": check_path,
    "container_options": _options,
    "mount_dirs": _directories,
    "gres_resource": check_gres,
    "gres_node": check_name,
    "licence": check_licence,
    "cs_ip": check_address,
    "partition": check_name,
    "account": check_name,
    "qos": check_name,
    "time_limit": check_time_limit,
    "slurm_options": _options,
}
