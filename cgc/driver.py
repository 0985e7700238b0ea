"""The compiler from end to end: a module of CIRH in, an artifact directory out.

    check -> passes -> kernels -> placement -> performance model -> report
                   \\-> executables (jax.export)                      -> artifact

The stages after the passes depend on the mode of execution (`cgc.execution`). A program that was compiled
before is found by its key.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from xdsl.dialects.builtin import ModuleOp

from cgc.artifact import (
    Artifact,
    Toolchain,
    artifact_key,
    artifact_lock,
    artifact_path,
    file_entries,
    find_older,
    open_artifact,
    publish,
    tool_version,
    tool_versions,
)
from cgc.cirh.base import CirhOp, layer_runs
from cgc.cirh.interface import graph_function, step_interface, step_mode
from cgc.cirh.op_table import OpTable, module_digest, tabulate_ops
from cgc.errors import CorruptArtifactError
from cgc.execution.compilation import CompileOptions, Progress, Stages, rewrite_step
from cgc.manifest import FORMAT_VERSION, REPORT_TEXT, FabricName, Interface, Manifest, Provenance
from cs_toolkit.fabric import Fabric
from cs_toolkit.step import StepInterface

if TYPE_CHECKING:
    from cgc.kernels import KernelGraph
    from cgc.publishing import DirectoryLock
    from cgc.report import CompileReport

_VALIDATE_STAGES = 2


@dataclass(frozen=True)
class ValidationResult:
    """A program that can be compiled: its kernels, and the seconds that the check took."""

    graph: KernelGraph
    seconds: float


@dataclass(frozen=True)
class CompileResult:
    """A compiled program.

    Attributes:
        artifact: the artifact that was written or found.
        reused: True if it was found ("Cached compilation found for this model configuration").
        warnings: warnings for the user, one line each.
        seconds: duration, including the wait for another task.
        report: the estimates as objects; None if the artifact was reused. `report_text` is always available.
    """

    artifact: Artifact
    reused: bool
    warnings: tuple[str, ...]
    seconds: float
    report: CompileReport | None

    @property
    def notices(self) -> tuple[str, ...]:
        """Notices for the user: reasons of the choices that were left to the compiler."""
        return tuple(self.artifact.manifest.notices)

    @property
    def report_text(self) -> str:
        """The content of `compile_report.txt`."""
        return self.artifact.read(REPORT_TEXT).decode()


def validate_step(
    module: ModuleOp,
    options: CompileOptions,
    fabric: Fabric,
    progress: Progress | None = None,
    *,
    interface: StepInterface | None = None,
) -> ValidationResult:
    """Check that a program can be compiled: its interface, a rewritten copy, its kernels.

    Args:
        module: a step with `cs.mode`; it is not changed.
        options: options of the compiler.
        fabric: the target; only `compile_step` places kernels on it.
        progress: called when a stage begins.
        interface: the interface of the module, if the caller has read it.

    Raises:
        CompileError: it cannot be compiled; the message names the op, its node and the user's line.
    """
    from cgc.execution.pipelined import match_step

    start = time.monotonic()
    if interface is None:
        step_interface(module)
    stages = Stages(_VALIDATE_STAGES, progress)
    scanned = tabulate_ops(graph_function(module))
    graph = match_step(rewrite_step(module, scanned, options.pipeline, stages), stages)
    stages.finish()
    return ValidationResult(graph, time.monotonic() - start)


def compile_step(
    module: ModuleOp,
    compile_dir: Path,
    options: CompileOptions,
    fabric: Fabric,
    progress: Progress | None = None,
    *,
    interface: StepInterface | None = None,
    lock_timeout_s: float = 3600.0,
    on_wait: Callable[[str], None] | None = None,
    made: Provenance | None = None,
) -> CompileResult:
    """Compile a program, or find its artifact.

    If several tasks compile the same program at once, one compiles, and the others wait and use its result.
    A corrupt artifact is recompiled with a warning.

    Args:
        module: a step with `cs.mode`; it is not changed.
        compile_dir: the folder of artifacts; created if missing.
        options: options of the compiler.
        fabric: the fabric to place the kernels on.
        progress: called when a stage begins.
        interface: the interface of the module, if the caller has read it.
        lock_timeout_s: time to wait for another task that compiles the same program.
        on_wait: called with the name of that task before the wait.
        made: provenance, for the human-readable reports and a separate file. It is not part of the key, and
            no other file depends on it.

    Raises:
        CompileError: the program is invalid, or cannot be executed or placed.
        ArtifactWriteError: the disk is full, or permission is missing; no partial artifact is left.
        ArtifactLockError: another task took longer than `lock_timeout_s`.
    """
    start = time.monotonic()
    interface = interface or step_interface(module)
    scanned = tabulate_ops(graph_function(module))
    ops = [op for op in module.walk() if isinstance(op, CirhOp)] if scanned is None else scanned.ops
    key_of = partial(
        artifact_key,
        module_digest(module, scanned),
        layer_runs(ops),
        options.model_dump(),
        fabric.model_dump(mode="json"),
    )
    key = key_of()
    report, warning = None, None
    artifact, _ = _find(compile_dir, key)
    if artifact is None:
        with artifact_lock(compile_dir, key, lock_timeout_s, on_wait) as lock:
            artifact, warning = _find(compile_dir, key)  # while this task waited, another may have compiled
            if artifact is None:
                warning = warning or _older(compile_dir, key_of)
                artifact, report = _compile(
                    module, scanned, interface, options, fabric, key, lock, progress, made or Provenance()
                )
    return CompileResult(
        artifact=artifact,
        reused=report is None,
        warnings=() if warning is None else (warning,),
        seconds=time.monotonic() - start,
        report=report,
    )


def _find(compile_dir: Path, key: str) -> tuple[Artifact | None, str | None]:
    """Return (artifact, None), or (None, a warning if an artifact exists that cannot be used)."""
    path = artifact_path(compile_dir, key)
    if not os.path.lexists(path):
        return None, None
    try:
        artifact = open_artifact(path)
    except CorruptArtifactError as error:
        return None, f"the compile artifact cannot be used and is compiled again: {error}"
    got, expected = artifact.manifest.tool_version, tool_version()
    if got != expected:
        return (
            None,
            f"the compile artifact {path} was made by {got}, this is {expected}; it is compiled again",
        )
    return artifact, None


def _older(compile_dir: Path, key_of: Callable[[Toolchain], str]) -> str | None:
    """Return a warning if another version of the compiler has compiled the program."""
    found = find_older(compile_dir, key_of)
    if found is None:
        return None
    path, made_by = found
    return (
        f"the compile artifact {path} was made by {made_by}, this is {Toolchain.current()}: the program is "
        "compiled again; remove the older directory when nobody uses it"
    )


def _compile(
    module: ModuleOp,
    scanned: OpTable | None,
    interface: StepInterface,
    options: CompileOptions,
    fabric: Fabric,
    key: str,
    lock: DirectoryLock,
    progress: Progress | None,
    made: Provenance,
) -> tuple[Artifact, CompileReport]:
    from cgc.execution.choice import compile_for

    stages, compiled = compile_for(options, module, scanned, interface, fabric, progress)
    with stages.stage("Writing the artifact"):
        files, used = compiled.files(made), fabric.for_execution(compiled.estimates.execution)
        manifest = Manifest(
            format_version=FORMAT_VERSION,
            tool_version=tool_version(),
            key=key,
            mode=step_mode(module),
            precision=options.precision,
            batch_size=compiled.batch_size,
            interface=Interface.from_step(interface),
            executables=compiled.entries(),
            fabric=FabricName(name=used.name, processing_elements=used.processing_elements),
            estimates=compiled.estimates,
            notices=list(compiled.report.notices),
            versions=tool_versions(),
            files=file_entries(files),
        )
        artifact = publish(lock, manifest, files)
    stages.finish()
    return artifact, compiled.report
