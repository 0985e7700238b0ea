"""The site file of a project: where it is searched, and which of its settings need the user's consent.

A project's file may come with a checkout from an unknown author. Without consent it may set the size of jobs
and their place in the queue; it may not choose what runs, what is mounted, or which system gets the user's
data.
"""

from __future__ import annotations

import hashlib
import os
import pwd
import stat
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path

from csrun.errors import CsrunError
from csrun.jobs.registry import registry_dir
from csrun.site.values import scheduler_keys

FILE_NAME = "csrun.yaml"

# A setting that is not listed needs consent, so that a new one is safe by default.
_HARMLESS = frozenset(
    ("launcher", "def_nodes", "def_tasks_per_node", "def_cpus_per_task", "max_restarts", "peer_timeout_s")
)


def find_project_file(directory: Path) -> Path | None:
    """Return the nearest project file in a directory or above it; None without one."""
    for folder in (directory, *directory.parents):
        path = folder / FILE_NAME
        with suppress(OSError):
            # In /tmp anyone could leave a file for the programs of all users.
            if path.is_file() and not folder.stat().st_mode & stat.S_IWOTH:
                return path
    return None


def needs_consent(key: str) -> bool:
    """Return True if a project's file may set the key only with the user's consent."""
    declared = scheduler_keys().get(key)
    return not (declared.setting.harmless if declared else key in _HARMLESS)


def consent_error(
    path: Path, keys: Iterable[str], lines: Mapping[str, int], environment: Mapping[str, str]
) -> str | None:
    """Return the error of a project's file that needs the user's consent and does not have it.

    Args:
        path: of the file.
        keys: that it sets.
        lines: of the keys.
        environment: of the user, for the directory with the consents.
    """
    try:
        owner = path.stat().st_uid
        foreign = owner not in (os.getuid(), 0)
        chosen = [key for key in keys if needs_consent(key)]
        if not (foreign or chosen) or _consent_file(path, environment).is_file():
            return None
    except OSError:
        return None  # the reader of the file reports it
    accept = f"read the file, then accept it with 'csrun config trust {path}'"
    if foreign:
        return f"{path}: the project's file belongs to {_user_name(owner)}; expected your own: {accept}"
    place = f"{path}:{lines[chosen[0]]}" if chosen[0] in lines else str(path)
    return (
        f"{place}: a project's file sets {', '.join(chosen)}, with which a checkout could run "
        f"its own program or send your data elsewhere; expected your consent: {accept}, or move the setting "
        f"into your own site file"
    )


def give_consent(path: Path, environment: Mapping[str, str]) -> None:
    """Accept a project's file as it is now: consent ends when its content or its place changes.

    Raises:
        CsrunError: the file cannot be read, or the consent cannot be written.
    """
    try:
        consent = _consent_file(path, environment)
        consent.parent.mkdir(parents=True, exist_ok=True)
        consent.write_text(f"{path}\n", encoding="utf-8", errors="surrogateescape")
    except OSError as error:
        raise CsrunError(
            f"{path} cannot be accepted: {error}; expected a readable file and a writable directory "
            f"{registry_dir(environment).parent}"
        ) from error


def withdraw_consent(path: Path, environment: Mapping[str, str]) -> None:
    """Forget that a project's file was accepted; does nothing if it was not.

    Raises:
        CsrunError: the file cannot be read, or the consent cannot be removed.
    """
    try:
        _consent_file(path, environment).unlink(missing_ok=True)
    except OSError as error:
        raise CsrunError(
            f"the consent to {path} cannot be removed: {error}; expected a readable file"
        ) from error


def _consent_file(path: Path, environment: Mapping[str, str]) -> Path:
    digest = hashlib.sha256(os.fsencode(path.resolve()) + b"\0" + path.read_bytes()).hexdigest()
    return registry_dir(environment).with_name("trusted") / digest


def _user_name(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"user {uid}"
