"""Values of settings: checks of each value, and settings from environment variables.

Every `check_*` returns the value or raises ValueError, whose message completes "KEY is VALUE: expected ...".
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Mapping
from typing import Any

from csrun.schedulers.registry import check_name as check_launcher
from csrun.site import CONTAINERS

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
    """Return the whole number in `text`; None if it is not one, or is below `minimum`."""
    # int() also accepts "1_0", " 1" and digits of other scripts.
    if not (text.isascii() and text.isdigit()) or len(text) > len(str(MAX_COUNT)):
        return None
    value = int(text)
    return value if value >= minimum else None


def check_path(text: str) -> str:
    """Check an absolute path; empty if not set."""
    # A relative path would name a different file in every directory.
    if text and (not text.startswith("/") or not text.isprintable()):
        raise ValueError("expected an absolute path, one that starts with '/'")
    return text


def check_mount_dir(text: str) -> str:
    """Check an absolute path that is valid in a comma-separated list and in a `-B` or `-b` argument."""
    if not check_path(text) or "," in text or ":" in text:
        raise ValueError("expected the absolute path of a directory, without ',' and ':'")
    return text


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


def check_name(text: str) -> str:
    """Check a single name for Slurm; empty if not set."""
    if text and not _NAME.fullmatch(text):
        raise ValueError("expected one name, without blanks and commas")
    return text


def check_address(text: str) -> str:
    """Check `HOST` or `HOST:PORT`; empty if not set."""
    host, colon, port = text.partition(":")
    if text and (not _NAME.fullmatch(host) or (colon and not 1 <= (parse_count(port) or 0) <= 65535)):
        raise ValueError("expected HOST or HOST:PORT, for example 192.0.2.7:9000")
    return text


def check_time_limit(text: str) -> str:
    """Check a time limit in a format of srun --time; empty if not set."""
    if text and not _TIME_LIMIT.fullmatch(text):
        raise ValueError(
            "expected a time limit as MINUTES, MINUTES:SECONDS, HOURS:MINUTES:SECONDS, DAYS-HOURS, "
            "DAYS-HOURS:MINUTES:SECONDS or UNLIMITED"
        )
    return text


def check_argument(text: str) -> str:
    """Check one argument of a command line: not empty, no control characters."""
    if not text or not text.isprintable():
        raise ValueError("expected one argument of a command line, without control characters")
    return text


def check_options(arguments: tuple[str, ...]) -> tuple[str, ...]:
    """Check arguments that precede the command which a program runs."""
    for argument in arguments:
        check_argument(argument)
    if arguments and not arguments[0].startswith("-"):
        raise ValueError(f"expected options: the first one, {arguments[0]!r}, does not start with '-'")
    if "--" in arguments:
        raise ValueError("expected options without '--', which would end them")
    return arguments


def check_mount_dirs(directories: tuple[str, ...]) -> tuple[str, ...]:
    """Check absolute directories, and remove duplicates."""
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
"""The variables of every field of `Site`; the first one that is set is used."""


def read_variables(
    environment: Mapping[str, str],
) -> tuple[dict[str, Any], dict[str, str], list[str]]:
    """Return settings of the environment: values by field, names of variables by field, and all errors.

    Empty and blank variables are ignored.
    """
    settings: dict[str, Any] = {}
    names: dict[str, str] = {}
    errors: list[str] = []
    for field, candidates in VARIABLES.items():
        name = next((name for name in candidates if environment.get(name, "").strip()), None)
        if name is None:
            continue
        text = environment[name].strip()
        try:
            settings[field] = _PARSERS[field](text)
        except ValueError as error:
            errors.append(f"the environment variable {name} is {text!r}; {error}: set it to one, or unset it")
        else:
            names[field] = name
    return settings, names, errors


def _count(text: str) -> int:
    value = parse_count(text)
    if value is None:
        raise ValueError("expected a whole number of at least 1")
    return value


def _one_of(choices: tuple[str, ...]) -> Callable[[str], str]:
    def parse(text: str) -> str:
        if text not in choices:
            raise ValueError(f"expected one of: {', '.join(choices)}")
        return text

    return parse


def _options(text: str) -> tuple[str, ...]:
    try:
        arguments = shlex.split(text)
    except ValueError as error:
        raise ValueError(f"expected arguments quoted as in a shell ({error})") from None
    return check_options(tuple(arguments))


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
