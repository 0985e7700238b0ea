"""Where a compiled step comes from, for its report: this program, its command, the time, the versions."""

from __future__ import annotations

import os
import shlex
import sys
import time
from importlib import metadata
from pathlib import Path
from platform import python_version

from cgc.provenance import Provenance
from cs_toolkit.version import __version__

_FRAMEWORKS = ("tensorflow", "keras", "tf_keras", "torch")


def provenance(model: str) -> Provenance:
    """Of a compilation in this process, now.

    Args:
        model: what the program calls its model.
    """
    frameworks = {name: getattr(sys.modules.get(name), "__version__", None) for name in _FRAMEWORKS}
    return Provenance(
        model=model,
        program=_shown(sys.argv[0]),
        command=shlex.join(["python", *sys.argv]),
        compiled_at=time.strftime("%Y-%m-%d %H:%M:%S %z"),
        versions={
            "toolkit": __version__,
            **{name: version for name, version in frameworks.items() if version},
            "jax": metadata.version("jax"),
            "python": python_version(),
        },
    )


def _shown(path: str) -> str:
    """A path as a user reads it: from here, where it lies below."""
    if not path or path.startswith("-"):
        return ""
    whole = Path(path).absolute()
    return str(whole.relative_to(Path.cwd())) if whole.is_relative_to(Path.cwd()) else os.fspath(whole)
