"""The user's command: the file that it names, and the words that start it inside of a container."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterable
from dataclasses import dataclass
from os.path import normpath
from pathlib import Path, PurePath

from cs_toolkit.errors import UsageError
from csrun.errors import CommandNotExecutableError, CommandNotFoundError, CsrunError, StartError
from csrun.site.model import Container, Site

_NO_ROOM = (errno.EAGAIN, errno.ENOMEM, errno.EMFILE, errno.ENFILE)
_HINTS = {
    errno.E2BIG: "expected fewer or shorter arguments and environment variables: pass long lists in a file",
    errno.ENOENT: "expected a script whose first line (#!) names an interpreter that exists",
    errno.ENOEXEC: "expected a program, or a script whose first line (#!) names its interpreter: for a "
    "Python file put 'python' in front of it",
}
_OF_THE_ORIGINAL = {
    "cerebras_install_check": "'csrun doctor' checks this machine",
    "csctl": "'csrun status' and 'csrun cancel' look after jobs here, 'cs_system status' after the CS system",
    **dict.fromkeys(("cslc", "cs_python"), "there is no language for kernels here, the compiler writes them"),
}
"""Commands that guides of sites name, and what serves instead."""


def find_command(command: str, path: str) -> str:
    """The file that `command` names, searched in the directories of `path` if it has no slash.

    Raises:
        CommandNotFoundError: there is no such file.
        CommandNotExecutableError: there is one, and it is no program.
    """
    candidates = [command] if "/" in command else [f"{folder or '.'}/{command}" for folder in path.split(":")]
    found = [file for file in candidates if command and exists(file)]
    files = [file for file in found if not is_directory(file)]
    for file in files:
        if os.access(file, os.X_OK):
            return file
    if not found or ("/" not in command and not files):
        if command and "/" not in command and exists(command) and not is_directory(command):
            raise CommandNotFoundError(
                f"command not found: {command!r}; a file of that name is here, and a program is searched in "
                f"PATH only: put 'python' in front of a Python file, './' in front of a program"
            )
        if command in _OF_THE_ORIGINAL:
            raise CommandNotFoundError(f"command not found: {command!r}; {_OF_THE_ORIGINAL[command]}")
        raise CommandNotFoundError(
            f"command not found: {command!r}; expected a program in PATH, or the path of one: "
            f"check the spelling"
        )
    kind = "is not executable" if files else "is a directory"
    raise CommandNotExecutableError(
        f"{(files or found)[0]!r} {kind}; expected a program: for a Python file put 'python' in front of it, "
        f"for a program of your own set its x bit (chmod +x)"
    )


def exists(path: str) -> bool:
    """Whether we can see something of this name; a name that is too long, or hidden from us, is none."""
    return os.access(path, os.F_OK)


def is_directory(path: str) -> bool:
    """Whether the name is that of a directory, in the same sense."""
    return exists(f"{path}/")


def start_refused(command: str, error: OSError) -> CommandNotExecutableError | StartError:
    """What to tell the user when the kernel does not start a command whose file exists."""
    if error.errno in _NO_ROOM:
        return StartError(
            f"cannot start {command!r}: {error.strerror}; expected room for one more process with its files: "
            f"start fewer tasks (--tasks-per-node), or raise the limits that 'ulimit -a' shows"
        )
    hint = _HINTS.get(error.errno or 0, "expected a program that this machine can execute: check the file")
    return CommandNotExecutableError(f"cannot execute {command!r}: {error.strerror}; {hint}")


SHARED_BY_CH_RUN = PurePath("/tmp")
"""ch-run binds the host's /tmp by itself."""


def containerize(
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
