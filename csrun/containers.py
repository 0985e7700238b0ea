"""The user's command inside a container: which words start it, with which directories. Pure.

`csrun.container_images` is the edge that looks at the image; `csrun.environment` has what is cleared and set.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from os.path import normpath
from pathlib import PurePath

from cs_toolkit.errors import UsageError
from csrun.site.model import Container, Site

RUNTIMES = {"singularity": "singularity", "apptainer": "apptainer", "charliecloud": "ch-run"}
"""The program of every container runtime."""

CHARLIECLOUD_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
"""PATH in an image that does not bring one: that of the host would name directories of the host."""


@dataclass(frozen=True, slots=True)
class Image:
    """A container image as the wrapping needs it.

    Attributes:
        path: absolute path.
        has_environment: it brings `/ch/environment`, variables in charliecloud's form.
    """

    path: str
    has_environment: bool = False


def bind_directories(directories: Iterable[PurePath | str]) -> tuple[str, ...]:
    """The directories to bind, outer ones first; what lies in another one comes along with it."""
    plain = {PurePath(normpath(directory)) for directory in directories if str(directory)}
    paths = sorted(plain, key=lambda path: path.parts)
    outer: list[PurePath] = []
    for path in paths:
        if not any(path.is_relative_to(other) for other in outer):
            outer.append(path)
    return tuple(map(str, outer))


def wrap_command(
    command: tuple[str, ...], site: Site, image: Image, cwd: PurePath, binds: tuple[str, ...]
) -> tuple[str, ...]:
    """The words that run `command` as the site's container setting has it, started in `cwd`.

    Args:
        command: program and arguments.
        site: container runtime and its options.
        image: used if there is a runtime.
        cwd: working directory, inside and outside the same; one of `binds` holds it.
        binds: absolute directories that the program sees under the same path.

    Raises:
        UsageError: a directory's name cannot be said to the runtime.
    """
    if site.container == "none":
        return command
    _refuse_unbindable(site.container, binds)
    if site.container == "charliecloud":
        return _charliecloud(command, site, image, cwd, binds)
    return (
        RUNTIMES[site.container],
        "exec",
        *(f"--bind={directory}" for directory in binds),
        f"--pwd={cwd}",
        *site.container_options,
        image.path,
        *command,
    )


def _charliecloud(
    command: tuple[str, ...], site: Site, image: Image, cwd: PurePath, binds: tuple[str, ...]
) -> tuple[str, ...]:
    return (
        RUNTIMES["charliecloud"],
        *(f"--bind={directory}" for directory in binds),
        f"--cd={cwd}",
        f"--set-env=PATH={CHARLIECLOUD_PATH}",
        *(["--set-env"] if image.has_environment else []),
        *site.container_options,
        image.path,
        "--",
        # ch-run exits with 1 for a command that does not exist or is none; the shell says 127 and 126.
        *("/bin/sh", "-c", 'exec "$@"', "sh"),
        *command,
    )


def _refuse_unbindable(container: Container, binds: tuple[str, ...]) -> None:
    if "/" in binds:
        raise UsageError(
            "the directory '/' cannot be passed to a container, because it would hide the image; expected "
            "directories below it: correct --mount-dirs or mount_dirs of the site"
        )
    separators = ":" if container == "charliecloud" else ",:"
    for directory in binds:
        if any(character in directory for character in separators):
            raise UsageError(
                f"the directory {directory!r} cannot be passed to {container}; expected a path without "
                f"{' and '.join(repr(character) for character in separators)}: rename or move it"
            )
