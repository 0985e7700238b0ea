"""Options of a run, set by the caller of a front end."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from cs_toolkit.execution_options import ExecutionOptions

log = logging.getLogger("cs_runtime")

# The mode of a run, as the `--mode` flag of programs spells it.
Command = Literal["train", "eval", "predict", "compile_only", "validate_only"]

# Directory for compile artifacts on the original's appliance.
DEFAULT_COMPILE_DIR = "/opt/cerebras/cached_compile"
# The default address in programs of the original, which is no system of this toolkit.
ORIGINAL_ADDRESS = "cluster-server.cerebras.com:443"


def local_compile_dir(given: str | Path | None) -> Path | None:
    """Return the directory for compile artifacts, or None to use that of the run.

    A directory that cannot be created on this machine is replaced by None, with a warning.
    """
    # Command lines for the original name directories of its appliance, such as `/USER`.
    if not given or str(given) == DEFAULT_COMPILE_DIR:
        return None
    path = Path(given)
    nearest = next(folder for folder in (path, *path.absolute().parents) if os.path.exists(folder))  # noqa: PTH110 - Path.exists raises where access is denied
    if nearest.is_dir() and os.access(nearest, os.W_OK | os.X_OK):
        return path
    log.warning("cannot create the compile_dir %s here; writing artifacts to the directory of the run", path)
    return None


@dataclass(frozen=True)
class RunSettings:
    """Options of one compile, training or inference run.

    Attributes:
        mode: The kind of run.
        model_dir: Directory for checkpoints and run files.
        batch_size: Samples in one batch.
        compile_dir: Directory for artifacts; `model_dir` when None.
        cs_ip: Address of the CS system as the user wrote it; None compiles for `fabric`.
        fabric: Name or YAML path of the fabric to compile for without a `cs_ip`.
        last_step: Global step at which training ends.
        steps: Number of steps after which training ends, if that comes before `last_step`.
        save_every_steps: Checkpoint at every multiple of this global step.
        save_every_s: Checkpoint when this many seconds have passed since the last one.
        log_every_steps: Log progress at every multiple of this global step.
        seed: Seed of the program's random numbers; None if it sets none.
        options: How the CS system executes the steps.
        params: The user's parameters, for the run files.
        record_dir: Directory of the record of the input, shared by runs that resume each other; `model_dir`
            when None.
    """

    mode: Command
    model_dir: Path
    batch_size: int
    compile_dir: Path | None = None
    cs_ip: str | None = None
    fabric: str = "cs2"
    last_step: int | None = None
    steps: int | None = None
    save_every_steps: int | None = None
    save_every_s: float | None = None
    log_every_steps: int | None = 100
    seed: int | None = None
    options: ExecutionOptions = field(default_factory=ExecutionOptions)
    params: Mapping[str, Any] = field(default_factory=dict)
    record_dir: Path | None = None

    @property
    def artifact_dir(self) -> Path:
        """Directory that holds the `cs_<hash>` artifact directories."""
        return self.compile_dir or self.model_dir
