"""The user's command: the file that it names, and the command line that runs it in a container."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterable
from dataclasses import dataclass
from os.path import normpath
from pathlib import Path, PurePath

from cs_toolkit.errors import UsageError
from csrun.errors import CommandNotExecutableError, CommandNotFoundError, CsrunError, StartError
from csrun.site import Container, Site

# The program of every container runtime.
RUNTIMES = {"singularity": "singularity", "apptainer": "apptainer", "charliecloud": "ch-run"}

# PATH in an image that does not set one; that of the host would name directories of the host.
CHARLIECLOUD_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
SHARED_BY_CH_RUN = PurePath("/tmp")  # ch-run binds it without being asked

_NO_RESOURCES = (errno.EAGAIN, errno.ENOMEM, errno.EMFILE, errno.ENFILE)
_HINTS = {
    errno.E2BIG: "expected fewer or shorter arguments and environment variables: pass long lists in a file",
    errno.ENOENT: "expected a script whose first line (#!) names an interpreter that exists",
    errno.ENOEXEC: "expected a program, or a script whose first line (#!) names its interpreter: for a "
    "Python file put 'python' in front of it",
}
# Commands of the original stack that guides of sites name, and their replacements.
_REPLACEMENTS = {
    "cerebras_install_check": "'csrun doctor' checks this machine",
    "csctl": "'csrun status' and 'csrun cancel' manage jobs here, 'cs_system status' shows the CS system",
    **dict.fromkeys(("cslc", "cs_python"), "kernels have no language here, the compiler generates them"),
}


def find_command(command: str, path: str) -> str:
    """Return the file that `command` names, searched in the directories of `path` if it has no slash.

    Raises:
        CommandNotFoundError: the file does not exist.
        CommandNotExecutableError: the file is not executable.
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
                f"command not found: {command!r}; a file of that name is here, but programs are searched "
                f"only in PATH: put 'python' in front of a Python file, './' in front of a program"
            )
        if command in _REPLACEMENTS:
            raise CommandNotFoundError(f"command not found: {command!r}; {_REPLACEMENTS[command]}")
        raise CommandNotFoundError(
            f"command not found: {command!r}; expected a program in PATH, or the path of one: "
            f"check the spelling"
        )
    kind = "is not executable" if files else "is a directory"
    raise CommandNotExecutableError(
        f"{(files or found)[0]!r} {kind}; expected a program: for a Python file put 'python' in front of it, "
        f"for your own program set its x bit (chmod +x)"
    )


def exists(path: str) -> bool:
    """Return True if the path exists and is visible; False also for a name that is too long."""
    return os.access(path, os.F_OK)


def is_directory(path: str) -> bool:
    """Return True if the path is a visible directory."""
    return exists(f"{path}/")


def start_error(command: str, error: OSError) -> CommandNotExecutableError | StartError:
    """Return the error for the user when the kernel does not start a command whose file exists."""
    if error.errno in _NO_RESOURCES:
        return StartError(
            f"cannot start {command!r}: {error.strerror}; expected resources for one more process: "
            f"start fewer tasks (--tasks-per-node), or raise the limits that 'ulimit -a' shows"
        )
    hint = _HINTS.get(error.errno or 0, "expected a program that this machine can execute: check the file")
    return CommandNotExecutableError(f"cannot execute {command!r}: {error.strerror}; {hint}")


def containerize(
    command: tuple[str, ...], site: Site, cwd: Path, directories: Iterable[PurePath | str] = ()
) -> tuple[str, ...]:
    """Return the command line that runs a command in the site's container, or the command if there is none.

    The program sees its working directory, `directories` and the site's mount_dirs under their own paths.

    Args:
        command: program and arguments.
        site: runtime, image, options, mount_dirs.
        cwd: absolute working directory.
        directories: further absolute directories, such as that of the logs.

    Raises:
        UsageError: a directory cannot be passed to the runtime, or has no mount point in the image.
    """
    if site.container == "none":
        return command
    image = Path(site.container_image)
    # A program in / sees the root directory of the image.
    more = [site.certs] if site.certs else []
    binds = bind_directories([*([] if cwd == Path("/") else [cwd]), *site.mount_dirs, *directories, *more])
    # The image is inspected from this machine; one that only other machines see is used as it is.
    if site.container == "charliecloud":
        binds = _mount_points(image, binds) if "/" not in binds else binds
    has_environment = (image / "ch" / "environment").is_file()
    return wrap_command(command, site, Image(str(image), has_environment), cwd, binds)


def require_container(site: Site, path: str) -> None:
    """Check that runtime and image exist, for a program that starts on this machine.

    Args:
        site: runtime and image.
        path: PATH in which the runtime is searched.

    Raises:
        CommandNotFoundError: the runtime is not in PATH.
        CsrunError: the image does not exist or is not readable.
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
            f"container_image of the site file or SINGULARITY_IMAGE ('csrun config show' shows which)"
        )


def _mount_points(image: Path, binds: tuple[str, ...]) -> tuple[str, ...]:
    """Return the directories that ch-run has to bind so that all of `binds` are visible.

    If one does not exist in the image, the nearest existing directory above it is bound if it is empty: /home
    for /home/alice/project.

    Raises:
        UsageError: no such directory exists.
    """
    # ch-run binds onto directories that exist in the image, and images are read-only.
    binds = tuple(bind for bind in binds if not PurePath(bind).is_relative_to(SHARED_BY_CH_RUN))
    # The content of a SquashFS file is unknown here; ch-run itself reports a missing directory.
    if not image.is_dir():
        return binds
    return bind_directories(_mount_point(image, PurePath(bind)) for bind in binds)


def _mount_point(image: Path, directory: PurePath) -> PurePath:
    if (image / directory.relative_to("/")).is_dir():
        return directory
    for parent in directory.parents:
        place = image / parent.relative_to("/")
        if place.is_dir():
            if parent != PurePath("/") and not any(place.iterdir()):
                return parent
            break
    raise UsageError(
        f"the image {image} has no directory {str(directory)!r}, and no empty one above it; expected a mount "
        f"point for the directory: mkdir -p {str(image) + str(directory)!r}, or work in another directory"
    )


@dataclass(frozen=True, slots=True)
class Image:
    """A container image.

    Attributes:
        path: absolute path.
        has_environment: it has `/ch/environment`, variables in Charliecloud's format.
    """

    path: str
    has_environment: bool = False


def bind_directories(directories: Iterable[PurePath | str]) -> tuple[str, ...]:
    """Return the directories to bind, in order of their paths, without those inside another one."""
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
    """Return the command line that runs `command` in the site's container, in `cwd`.

    Args:
        command: program and arguments.
        site: container runtime and its options.
        image: used if there is a runtime.
        cwd: working directory, inside one of `binds`.
        binds: absolute directories that the program sees under the same path.

    Raises:
        UsageError: a directory's name cannot be passed to the runtime.
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
        # ch-run exits with 1 if a command does not exist or is not executable; a shell with 127 and 126.
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
