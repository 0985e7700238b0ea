"""Values of settings: checks of each value, and settings from environment variables.

Every `check_*` returns the value or raises ValueError, whose message completes "KEY is VALUE: expected ...".
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from functools import cache
from pathlib import Path
from typing import Any

from cs_toolkit.network.liveness import PEER_TIMEOUT_VARIABLE, parse_peer_timeout
from csrun.schedulers.registry import BUILT_IN, schedulers
from csrun.schedulers.registry import check_name as check_launcher
from csrun.site import CONTAINERS, Setting

MAX_COUNT = 10**9 - 1
_NAME = re.compile(r"[^\s,\x00-\x1f\x7f-\x9f]+")


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


def check_user_directory(text: str) -> str:
    """Check an absolute path or one below the user's home, which is returned as an absolute path."""
    return check_path(str(Path(text).expanduser()) if text.startswith("~/") else text)


def check_mount_dir(text: str) -> str:
    """Check an absolute path without commas and colons."""
    # It becomes part of a comma-separated list and of the runtime's --bind, where both have a meaning.
    if not check_path(text) or "," in text or ":" in text:
        raise ValueError("expected the absolute path of a directory, without ',' and ':'")
    return text


def check_name(text: str) -> str:
    """Check a single name for a scheduler; empty if not set."""
    if text and not _NAME.fullmatch(text):
        raise ValueError("expected one name, without blanks and commas")
    return text


def check_address(text: str) -> str:
    """Check `HOST` or `HOST:PORT`; empty if not set."""
    host, colon, port = text.partition(":")
    if text and (not _NAME.fullmatch(host) or (colon and not 1 <= (parse_count(port) or 0) <= 65535)):
        raise ValueError("expected HOST or HOST:PORT, for example 192.0.2.7:9000")
    return text


def check_addresses(texts: tuple[str, ...]) -> tuple[str, ...]:
    """Check several addresses, and remove duplicates."""
    if any(not text for text in texts):
        raise ValueError("expected addresses that are not empty")
    return tuple(dict.fromkeys(check_address(text) for text in texts))


def _addresses(text: str) -> str:
    # The launcher passes the systems of the site in this variable; a launcher inside of a job reads it.
    return ",".join(check_addresses(tuple(part.strip() for part in text.split(","))))


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


def _count(text: str, minimum: int = 1) -> int:
    value = parse_count(text, minimum)
    if value is None:
        raise ValueError(f"expected a whole number of at least {minimum}")
    return value


def _container(text: str) -> str:
    if text not in CONTAINERS:
        raise ValueError(f"expected one of: {', '.join(CONTAINERS)}")
    return text


def _arguments(text: str) -> tuple[str, ...]:
    try:
        return tuple(shlex.split(text))
    except ValueError as error:
        raise ValueError(f"expected arguments quoted as in a shell ({error})") from None


# The variables of every general setting, of which the first one that is set is used, and their parser.
_GENERAL: Mapping[str, tuple[tuple[str, ...], Callable[[str], Any]]] = {
    "launcher": (("CSRUN_LAUNCHER",), check_launcher),
    "def_nodes": (("DEF_NODES",), _count),
    "def_tasks_per_node": (("DEF_TASKS_PER_NODE", "DEF_TASKS"), _count),
    "def_cpus_per_task": (("DEF_CPUS_PER_TASK", "DEF_CPUS"), _count),
    "max_restarts": (("CSRUN_MAX_RESTARTS",), lambda text: _count(text, 0)),
    "container": (("CSRUN_CONTAINER",), _container),
    "python": (("CSRUN_PROGRAM_PYTHON",), check_path),
    "container_image": (("SINGULARITY_IMAGE",), check_path),
    "container_options": (("CSRUN_CONTAINER_OPTIONS",), lambda text: check_options(_arguments(text))),
    "mount_dirs": (
        ("MOUNT_DIRS",),
        lambda text: check_mount_dirs(tuple(name.strip() for name in text.split(",") if name.strip())),
    ),
    "cs_ip": (("CS_IP",), _addresses),
    "systems": (("CS_SYSTEMS",), lambda text: tuple(_addresses(text).split(","))),
    "peer_timeout_s": ((PEER_TIMEOUT_VARIABLE,), parse_peer_timeout),
    "certs": (("CS_CERTS",), check_user_directory),
}


@dataclass(frozen=True, slots=True)
class SchedulerKey:
    """A setting of a scheduler: name of the scheduler, name of the setting, default, declaration."""

    scheduler: str
    name: str
    default: Any
    setting: Setting

    def parse(self, text: str) -> Any:
        """Return the value of the variable."""
        return self.setting.check(_arguments(text) if self.setting.kind == "arguments" else text)


@cache
def scheduler_keys() -> Mapping[str, SchedulerKey]:
    """Return the settings of all schedulers by key: NAME, in the section of a package SCHEDULER.NAME."""
    keys = {}
    for each in schedulers():
        # The keys of the toolkit's own schedulers are at the top level: site files are older than sections.
        prefix = "" if each.name in BUILT_IN else f"{each.name}."
        for field in fields(each.settings) if each.settings else ():
            about = SchedulerKey(each.name, field.name, field.default, field.metadata["setting"])
            keys[f"{prefix}{field.name}"] = about
    return keys


def variables() -> dict[str, tuple[str, ...]]:
    """Return the environment variables of every setting by key; the first one that is set is used."""
    own = {key: (each.setting.variable,) for key, each in scheduler_keys().items()}
    return {**{key: names for key, (names, _) in _GENERAL.items()}, **own}


def read_variables(
    environment: Mapping[str, str],
) -> tuple[dict[str, Any], dict[str, str], list[str]]:
    """Return settings of the environment: values by key, names of variables by key, and all errors.

    Empty and blank variables are ignored.
    """
    settings: dict[str, Any] = {}
    names: dict[str, str] = {}
    errors: list[str] = []
    for key, candidates in variables().items():
        name = next((name for name in candidates if environment.get(name, "").strip()), None)
        if name is None:
            continue
        text = environment[name].strip()
        parse = _GENERAL[key][1] if key in _GENERAL else scheduler_keys()[key].parse
        try:
            settings[key] = parse(text)
        except ValueError as error:
            errors.append(f"the environment variable {name} is {text!r}; {error}: set it to one, or unset it")
        else:
            names[key] = name
    return settings, names, errors
