"""Changes of the environment of the user's program.

Pure, except for `this_toolkit` and `environment_variables`.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from cs_toolkit.import_hooks import USER_PATHS_VARIABLE
from cs_toolkit.network.liveness import PEER_TIMEOUT_VARIABLE
from cs_toolkit.security.identity import CERTS_VARIABLE
from csrun.site import Site
from csrun.tasks.place import JOB_VARIABLES
from csrun.wrappers import BIN, PYTHON_VARIABLE

# Variables that would put other modules and libraries in front of the toolkit's.
FOREIGN_VARIABLES = (
    "PYTHONPATH",
    "PYTHONHOME",
    "GITTOP",
    "LLVM_TOP",
    "LLVM_MLIR_PATH",
    "LD_LIBRARY_PATH",
    "CBCORE",
    "CEREBRAS_INCLUDE_PATH",
    "CEREBRAS_ANGLER_SHARE_PATH",
)

# Further variables that name files of the host, which a program in a container does not see.
CONTAINER_VARIABLES = ("LD_PRELOAD", "TMPDIR", "VIRTUAL_ENV", "CONDA_PREFIX")

# Names the CS system for programs whose command line does not.
SYSTEM_VARIABLE = "CS_IP"

DEFAULT_PATH = "/usr/local/bin:/usr/bin:/bin"


@dataclass(frozen=True, slots=True)
class Toolkit:
    """The location of this toolkit.

    Attributes:
        bin_dir: directory of its Python interpreter.
        import_root: directory that must be in PYTHONPATH for its packages; None if they are installed.
        wrappers: directory of the wrappers of its interpreter (`csrun.wrappers`).
    """

    bin_dir: Path
    import_root: Path | None
    wrappers: Path = BIN

    @property
    def python(self) -> Path:
        """The interpreter of the toolkit."""
        return self.bin_dir / "python"


def this_toolkit() -> Toolkit:
    """Return the toolkit that this process runs from."""
    root = Path(__file__).resolve().parents[2]
    installed = root.name in ("site-packages", "dist-packages")
    # Not resolved: the interpreter of a virtual environment is a symbolic link.
    return Toolkit(Path(sys.executable).absolute().parent, None if installed else root)


@contextmanager
def environment_variables(values: Mapping[str, str]) -> Iterator[None]:
    """Set environment variables of this process in the body, and restore them afterwards."""
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


@dataclass(frozen=True, slots=True)
class EnvironmentChange:
    """Variables to set and to unset, in the order in which they are shown."""

    values: Mapping[str, str]
    unset: tuple[str, ...] = ()

    def apply(self, environment: Mapping[str, str]) -> dict[str, str]:
        """Return a changed copy of `environment`; a variable that is both unset and set is set."""
        kept = {name: value for name, value in environment.items() if name not in self.unset}
        return {**kept, **self.values}


def program_python(site: Site, toolkit: Toolkit) -> Path:
    """Return the interpreter of programs outside containers: the site's, else the toolkit's."""
    return Path(site.python) if site.python else toolkit.python


def program_environment(
    environment: Mapping[str, str], toolkit: Toolkit, site: Site | None = None
) -> EnvironmentChange:
    """Return the change for every program: its interpreter first in PATH, no other modules before its own.

    In a container, interpreter and modules are those of the image, and variables that name files of the host
    are unset.
    """
    site = site or Site()
    if site.container != "none":
        return _container_environment(environment, site)
    # `python` is a wrapper of `csrun.wrappers`, whose import path has the names of the original stack first
    # and the user's PYTHONPATH last.
    path, python = environment.get("PATH") or DEFAULT_PATH, program_python(site, toolkit)
    first = f"{toolkit.wrappers}:{python.parent}"
    values = {
        "PATH": path if f"{path}:".startswith(f"{first}:") else f"{first}:{path}",
        PYTHON_VARIABLE: str(python),
    }
    if user_paths := _user_paths(environment, toolkit):
        values[USER_PATHS_VARIABLE] = user_paths
    if toolkit.import_root is not None:
        values["PYTHONPATH"] = str(toolkit.import_root)
    values |= _site_variables(site)
    # Those of an enclosing job are unset: a program of csrun_cpu is not a task, and csrun_wse sets its own.
    candidates = (*FOREIGN_VARIABLES, "TF_CONFIG", *JOB_VARIABLES)
    return EnvironmentChange(values, tuple(name for name in candidates if name in environment))


def _container_environment(environment: Mapping[str, str], site: Site) -> EnvironmentChange:
    # Otherwise the image's Python would find packages below ~/.local, which are for the host's Python.
    values = {"PATH": environment.get("PATH") or DEFAULT_PATH, "PYTHONNOUSERSITE": "1"}
    if not environment.get("USER"):
        # ch-run refuses to start without USER, which batch jobs and cron do not set.
        values["USER"] = environment.get("LOGNAME") or f"uid{os.getuid()}"
    values |= _site_variables(site)
    launchers = ("TF_CONFIG", *JOB_VARIABLES, PYTHON_VARIABLE, USER_PATHS_VARIABLE)
    candidates = (*FOREIGN_VARIABLES, *CONTAINER_VARIABLES, *launchers)
    return EnvironmentChange(values, tuple(name for name in candidates if name in environment))


def _site_variables(site: Site) -> dict[str, str]:
    """Return the variables for the site's CS system: address, the user's certificate, liveness."""
    timeout = "" if site.peer_timeout_s is None else f"{site.peer_timeout_s:g}"
    named = {
        SYSTEM_VARIABLE: site.system_addresses,
        CERTS_VARIABLE: site.certs,
        PEER_TIMEOUT_VARIABLE: timeout,
    }
    return {name: value for name, value in named.items() if value}


def unset_notice(environment: Mapping[str, str], change: EnvironmentChange) -> str | None:
    """Return a notice about variables of the user that the program does not get; None for none."""
    # Inside a job TF_CONFIG is the outer launcher's, not the user's.
    ours = {*JOB_VARIABLES, PYTHON_VARIABLE, USER_PATHS_VARIABLE}
    if "CSRUN_RANK" in environment:
        ours.add("TF_CONFIG")
    if USER_PATHS_VARIABLE in change.values:  # the interpreter of programs appends it to its paths
        ours.add("PYTHONPATH")
    hidden = [
        name
        for name in change.unset
        if name not in ours and environment[name] not in ("", "{}", change.values.get(name))
    ]
    if not hidden:
        return None
    names = ", ".join(hidden)
    return (
        f"not passed on to the program: {names} (its Python and modules are the toolkit's or the container's)"
    )


def _user_paths(environment: Mapping[str, str], toolkit: Toolkit) -> str:
    """Return the user's PYTHONPATH without the entries that an enclosing launcher has added."""
    packages = toolkit.import_root or toolkit.wrappers.parents[1]
    own = (str(packages), f"{packages}/cs_compat/")
    given = f"{environment.get('PYTHONPATH', '')}:{environment.get(USER_PATHS_VARIABLE, '')}".split(":")
    theirs = (entry for entry in given if entry and entry != own[0] and not entry.startswith(own[1]))
    return ":".join(dict.fromkeys(theirs))
