"""What the launchers change in the environment of the user's program. Pure, except for `this_toolkit`."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from csrun.roles import JOB_VARIABLES

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
"""Variables that would bring modules and libraries from outside in front of the toolkit's own."""

DEFAULT_PATH = "/usr/local/bin:/usr/bin:/bin"


@dataclass(frozen=True, slots=True)
class Toolkit:
    """Where this toolkit is.

    Attributes:
        bin_dir: directory of its Python interpreter.
        import_root: directory that must be on PYTHONPATH for its packages; None where they are installed.
    """

    bin_dir: Path
    import_root: Path | None


def this_toolkit() -> Toolkit:
    """The toolkit that this process runs from: the interpreter is not resolved, so a venv stays one."""
    root = Path(__file__).resolve().parent.parent
    installed = root.name in ("site-packages", "dist-packages")
    return Toolkit(Path(sys.executable).absolute().parent, None if installed else root)


@dataclass(frozen=True, slots=True)
class EnvironmentChange:
    """Variables that are set and unset, in the order in which they are shown."""

    values: Mapping[str, str]
    unset: tuple[str, ...] = ()

    def apply(self, environment: Mapping[str, str]) -> dict[str, str]:
        """A copy of `environment` with the change made; what is set wins over what is unset."""
        kept = {name: value for name, value in environment.items() if name not in self.unset}
        return {**kept, **self.values}


def program_environment(environment: Mapping[str, str], toolkit: Toolkit) -> EnvironmentChange:
    """The change for every program: the toolkit's interpreter first in PATH, no foreign modules.

    TF_CONFIG and the variables of an enclosing job go too: a program that csrun_cpu runs is no task of a job,
    and csrun_wse tells each of its tasks its own.
    """
    values = {"PATH": _with_first(environment.get("PATH") or DEFAULT_PATH, str(toolkit.bin_dir))}
    if toolkit.import_root is not None:
        values["PYTHONPATH"] = str(toolkit.import_root)
    candidates = (*FOREIGN_VARIABLES, "TF_CONFIG", *JOB_VARIABLES)
    return EnvironmentChange(values, tuple(name for name in candidates if name in environment))


def unset_notice(environment: Mapping[str, str], change: EnvironmentChange) -> str | None:
    """One line that names the user's variables that the program will not see; None where there are none."""
    # Inside a job TF_CONFIG is the outer launcher's, not the user's.
    ours = (*JOB_VARIABLES, "TF_CONFIG") if "CSRUN_RANK" in environment else JOB_VARIABLES
    hidden = [
        name
        for name in change.unset
        if name not in ours and environment[name] not in ("", "{}", change.values.get(name))
    ]
    if not hidden:
        return None
    return f"not passed on to the program: {', '.join(hidden)} (it gets the toolkit's own Python and modules)"


def _with_first(path: str, first: str) -> str:
    if path.split(":")[0] == first:
        return path
    return f"{first}:{path}"
