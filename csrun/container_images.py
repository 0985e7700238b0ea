"""What wrapping a command needs of the machine: the image, and where in it directories can go."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path, PurePath

from cs_toolkit.errors import UsageError
from csrun.commandline import find_command
from csrun.containers import RUNTIMES, Image, bind_directories, wrap_command
from csrun.errors import CommandNotFoundError, CsrunError
from csrun.site.model import Site

SHARED_BY_CH_RUN = PurePath("/tmp")
"""ch-run binds the host's /tmp by itself."""


def containerise(
    command: tuple[str, ...], site: Site, cwd: Path, directories: Iterable[PurePath | str] = ()
) -> tuple[str, ...]:
    """The words that run a command in the site's container, or the command itself where there is none.

    The program sees its working directory, `directories` and the site's mount_dirs under their own paths. The
    image is looked at from this machine; one that only other machines can see is taken as it is.

    Args:
        command: program and arguments.
        site: runtime, image, options, mount_dirs.
        cwd: absolute working directory.
        directories: absolute directories beside it, that of the logs for instance.

    Raises:
        UsageError: a directory cannot be passed to the runtime, or has no place in the image.
    """
    if site.container == "none":
        return command
    image = Path(site.container_image)
    # In / a program sees the image's.
    binds = bind_directories([*([] if cwd == Path("/") else [cwd]), *site.mount_dirs, *directories])
    if site.container == "charliecloud":
        binds = _places_in_image(image, binds) if "/" not in binds else binds
    has_environment = (image / "ch" / "environment").is_file()
    return wrap_command(command, site, Image(str(image), has_environment), cwd, binds)


def require_container(site: Site, path: str) -> None:
    """Checks that runtime and image are there, for a program that starts on this machine.

    Args:
        site: runtime and image.
        path: PATH in which the runtime is searched.

    Raises:
        CommandNotFoundError: there is no such runtime.
        CsrunError: there is no such image, or we may not read it.
    """
    if site.container == "none":
        return
    runtime = RUNTIMES[site.container]
    try:
        find_command(runtime, path)
    except CommandNotFoundError:
        raise CommandNotFoundError(
            f"command not found: {runtime!r}, the container runtime of this site ({site.container}); "
            f"expected it in PATH: install it, load its module, or set 'container: none'"
        ) from None
    if not os.access(site.container_image, os.R_OK):
        state = "cannot be read" if os.access(site.container_image, os.F_OK) else "does not exist"
        raise CsrunError(
            f"the container image {site.container_image!r} {state}; expected the image of this site: correct "
            f"container_image of the site file or SINGULARITY_IMAGE ('csrun config show' tells which counts)"
        )


def _places_in_image(image: Path, binds: tuple[str, ...]) -> tuple[str, ...]:
    """The directories that ch-run has to bind so that all of `binds` are seen.

    ch-run binds onto directories that exist in the image, and images are read-only. Where one does not exist,
    the nearest directory above it that does and is empty takes its place: /home for /home/alice/project. A
    SquashFS file cannot be looked into; ch-run tells what it lacks.

    Raises:
        UsageError: there is no such directory.
    """
    binds = tuple(bind for bind in binds if not PurePath(bind).is_relative_to(SHARED_BY_CH_RUN))
    if not image.is_dir():
        return binds
    return bind_directories(_place(image, PurePath(bind)) for bind in binds)


def _place(image: Path, directory: PurePath) -> PurePath:
    if (image / directory.relative_to("/")).is_dir():
        return directory
    for parent in directory.parents:
        place = image / parent.relative_to("/")
        if place.is_dir():
            if parent != PurePath("/") and not any(place.iterdir()):
                return parent
            break
    raise UsageError(
        f"the image {image} has no directory {str(directory)!r}, and no empty one above it; expected a place "
        f"for the directory: mkdir -p {str(image) + str(directory)!r}, or work in another directory"
    )
