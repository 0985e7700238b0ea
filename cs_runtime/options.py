"""What the caller decides about a run."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from cs_toolkit.execution_options import ReplicaChoice, Streaming
from cs_toolkit.step import ExecutionChoice, Precision

log = logging.getLogger("cs_runtime")

Command = Literal["train", "eval", "predict", "compile_only", "validate_only"]
"""The user's word for a run, as the command lines of programs take it."""
InputPosition = Literal["toolkit", "program"]
"""Who leaves out the batches that earlier runs have used, in a training that continues."""


EXECUTION_VARIABLE = "CSRUN_EXECUTION"
"""How `python-ws` tells programs that say nothing themselves to be executed by weight streaming."""


def default_execution() -> ExecutionChoice:
    """The execution of a program that names none."""
    return "weight_streaming" if os.environ.get(EXECUTION_VARIABLE) == "weight_streaming" else "auto"


DEFAULT_COMPILE_DIR = "/opt/cerebras/cached_compile"
"""The folder for compile artifacts of the original's appliance."""


def local_compile_dir(given: str | Path | None) -> Path | None:
    """Return the folder for compile artifacts; None, which is that of the run, where it cannot be made here.

    Command lines for the original name folders of its appliance, such as `/USER`.
    """
    if not given or str(given) == DEFAULT_COMPILE_DIR:
        return None
    path = Path(given)
    nearest = next(folder for folder in (path, *path.absolute().parents) if os.path.exists(folder))  # noqa: PTH110 - no error where it is hidden
    if nearest.is_dir() and os.access(nearest, os.W_OK | os.X_OK):
        return path
    log.warning("the compile_dir %s cannot be made here: artifacts go to the folder of the run", path)
    return None


@dataclass(frozen=True)
class RunSettings:
    """Settings of one compile, training or inference.

    Attributes:
        mode: The user's word for it.
        model_dir: Where checkpoints and summaries go.
        compile_dir: Where artifacts go; `model_dir` when None.
        cs_ip: Address of the CS system as the user wrote it; None compiles for `fabric`.
        fabric: Name or YAML path of the fabric to compile for when there is no `cs_ip`.
        last_step: Training ends when the global step reaches it.
        steps: Training ends after that many steps, whichever of both comes first.
        save_every_steps: Checkpoint whenever the global step is a multiple of it.
        save_every_s: Checkpoint when that many seconds have passed since the last one.
        log_every_steps: A progress line whenever the global step is a multiple of it.
        batch_size: Samples in one batch.
        precision: What activations and their gradients are computed in.
        execution: How the CS system executes a step.
        num_replicas: Copies of the model on the wafer that share a batch; "auto" leaves the number to the
            compiler.
        streaming: What holds where weights stream.
        max_wgt_servers: MemoryX processes that may share out the layers; None: all that the system has.
        input_position: Who leaves out the batches that earlier runs have used, in a training that continues.
        params: The user's parameters, noted in the summary.
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
    precision: Precision = "float32"
    execution: ExecutionChoice = "auto"
    num_replicas: ReplicaChoice = 1
    streaming: Streaming = field(default_factory=Streaming)
    max_wgt_servers: int | None = None
    input_position: InputPosition = "toolkit"
    params: Mapping[str, Any] = field(default_factory=dict)

    @property
    def artifact_dir(self) -> Path:
        """The folder in which `cs_<hash>` directories lie."""
        return self.compile_dir or self.model_dir
