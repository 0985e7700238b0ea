"""The compiler from end to end: a module of CIRH in, an artifact directory out.

    check -> passes -> kernels -> placement -> performance model -> report
                   \\-> executable (jax.export)                       -> artifact

A program that was compiled before is found by its key and not compiled again.
"""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import BaseModel, ConfigDict
from xdsl.dialects.builtin import ModuleOp, StringAttr

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
from cgc.cirh.interface import MODE, graph_function, step_interface
from cgc.cirh.text import canonical_text, print_module
from cgc.cirh.verify import verify_module
from cgc.errors import CorruptArtifactError, InvalidModuleError, PlacementError
from cgc.manifest import (
    CIRH_TEXT,
    DELTAT_ESTIMATE,
    FORMAT_VERSION,
    KERNELS_TEXT,
    LAIR_TEXT,
    PLAN,
    REPORT_HTML,
    REPORT_JSON,
    REPORT_TEXT,
    ExecutableEntry,
    FabricName,
    Interface,
    Manifest,
    PipelinedEstimates,
    executable_file,
)
from cgc.passes.default import DEFAULT_PIPELINE, precision_pipeline
from cs_toolkit.fabric import Fabric
from cs_toolkit.step import Execution, Mode, Precision, StepInterface

if TYPE_CHECKING:
    from cgc.kernels import KernelGraph
    from cgc.publishing import DirectoryLock
    from cgc.report import CompileReport

Progress = Callable[[str, int, int], None]
"""(stage that begins, stages done, stages in all); at the end once more with done == total."""

KERNEL = "cs.kernel"
"""Attribute of the ops in `kernels.mlir`: the name of the kernel that an op runs in."""

_MODES: tuple[Mode, ...] = ("train", "eval", "infer")
_WHOLE_STEP = "step"
"""The name of the one executable of a step that is executed pipelined."""

_VALIDATE_STAGES = 3
_COMPILE_STAGES = 7


class CompileOptions(BaseModel):
    """What a user can choose; a part of the artifact's key.

    Attributes:
        passes: the rewrites and their options, see `cgc.passes.pipeline`.
        precision: what activations and their gradients are computed in; with 16 bits the rest stays float32.
        execution: how the CS system executes the step.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    passes: str = DEFAULT_PIPELINE
    precision: Precision = "float32"
    execution: Execution = "pipelined"

    @property
    def pipeline(self) -> str:
        """All rewrites of a compilation, those of the precision among them."""
        return ",".join(filter(None, (self.passes, precision_pipeline(self.precision))))


@dataclass(frozen=True)
class ValidationResult:
    """A program that can be compiled: its kernels, and the seconds it took to find out."""

    graph: KernelGraph
    seconds: float


@dataclass(frozen=True)
class CompileResult:
    """A compiled program.

    Attributes:
        artifact: what was written or found.
        reused: it was found ("Cached compilation found for this model configuration").
        warnings: for the user, one line each.
        seconds: that this took, waiting for another task included.
        report: the estimates as objects; None if the artifact was reused. `report_text` is there always.
    """

    artifact: Artifact
    reused: bool
    warnings: tuple[str, ...]
    seconds: float
    report: CompileReport | None

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
    """Checks that a program can be compiled: its interface, a rewritten copy, its kernels.

    Args:
        module: a step with `cs.mode`; it is not changed.
        options: of the compiler.
        fabric: what the program is for; only `compile_step` places kernels on it.
        progress: told when a stage begins.
        interface: that of the module, where somebody has read it already; else it is read here.

    Raises:
        CompileError: it cannot; the message names the op, its node and the user's line.
    """
    start = time.monotonic()
    if interface is None:
        step_interface(module)
    stages = _Stages(_VALIDATE_STAGES, progress)
    _, graph = _kernels_of(module, options, stages)
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
) -> CompileResult:
    """Compiles a program, or finds it compiled.

    Of several tasks that compile the same program at once, one compiles and the others wait and use the
    result. An artifact that cannot be trusted is compiled again, with a warning.

    Args:
        module: a step with `cs.mode`; it is not changed.
        compile_dir: where artifacts lie; created if missing.
        options: of the compiler.
        fabric: what to place the kernels on.
        progress: told when a stage begins.
        interface: that of the module, where somebody has read it already; else it is read here.
        lock_timeout_s: patience with another task that compiles the same program.
        on_wait: called with who that is, before waiting for it.

    Raises:
        CompileError: the program is invalid, cannot be executed or placed.
        ArtifactWriteError: full disk, missing permission; nothing half-written is left.
        ArtifactLockError: another task took longer than `lock_timeout_s`.
    """
    start = time.monotonic()
    interface = interface or step_interface(module)
    key_of = partial(
        artifact_key, canonical_text(module), options.model_dump(), fabric.model_dump(mode="json")
    )
    key = key_of()
    report, warning = None, None
    artifact, _ = _find(compile_dir, key)
    if artifact is None:
        with artifact_lock(compile_dir, key, lock_timeout_s, on_wait) as lock:
            artifact, warning = _find(compile_dir, key)  # while this task waited, another may have compiled
            if artifact is None:
                warning = warning or _older(compile_dir, key_of)
                artifact, report = _compile(module, interface, options, fabric, key, lock, progress)
    return CompileResult(
        artifact=artifact,
        reused=report is None,
        warnings=() if warning is None else (warning,),
        seconds=time.monotonic() - start,
        report=report,
    )


def _find(compile_dir: Path, key: str) -> tuple[Artifact | None, str | None]:
    """(the artifact of a key, None) or (None, what is wrong with what lies there, if anything does)."""
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
    """Why a program that was compiled before is compiled again, if another version of the compiler did it."""
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
    interface: StepInterface,
    options: CompileOptions,
    fabric: Fabric,
    key: str,
    lock: DirectoryLock,
    progress: Progress | None,
) -> tuple[Artifact, CompileReport]:
    from cgc.executable import export_step
    from cgc.performance import with_streaming_rate
    from cgc.placement import place
    from cgc.report import compile_report

    stages = _Stages(_COMPILE_STAGES, progress)
    optimized, graph = _kernels_of(module, options, stages)
    with stages.stage("Placing kernels"):
        try:
            placement = place(graph, fabric)
        except PlacementError as error:
            raise with_streaming_rate(error, graph) from None
    with stages.stage("Estimating performance"):
        report = compile_report(graph, placement, fabric)
    with stages.stage("Exporting the executable"):
        executable = export_step(optimized, interface)
    with stages.stage("Writing the artifact"):
        files = _files(optimized, graph, report, executable)
        artifact = publish(lock, _manifest(key, _mode(optimized), options, interface, report, files), files)
    stages.finish()
    return artifact, report


def _kernels_of(module: ModuleOp, options: CompileOptions, stages: _Stages) -> tuple[ModuleOp, KernelGraph]:
    """(a rewritten copy of the module, its kernels)."""
    from cgc.kernels import match_kernels
    from cgc.passes.pipeline import run_pipeline, verification_wanted

    with stages.stage("Checking the graph"):
        # Ops check themselves where they are made and where they are parsed.
        if verification_wanted():
            verify_module(module)
        _mode(module)
    with stages.stage("Rewriting the graph"):
        optimized = module.clone()
        run_pipeline(optimized, options.pipeline)
    with stages.stage("Matching kernels"):
        return optimized, match_kernels(optimized)


def _files(
    module: ModuleOp, graph: KernelGraph, report: CompileReport, executable: bytes
) -> dict[str, bytes]:
    from cgc.kernels.nests.generated import lair_text
    from cgc.report import plan_json, render_html, render_text, report_json

    deltat = report.performance.overall.deltat_cycles
    texts = {
        CIRH_TEXT: print_module(module),
        KERNELS_TEXT: kernels_text(module, graph),
        LAIR_TEXT: lair_text(module, graph),
        PLAN: plan_json(report),
        DELTAT_ESTIMATE: json.dumps({"estimated_deltat": deltat}, separators=(",", ":")),
        REPORT_TEXT: render_text(report),
        REPORT_JSON: json.dumps(report_json(report), indent=1) + "\n",
        REPORT_HTML: render_html(report),
    }
    return {**{name: text.encode() for name, text in texts.items()}, executable_file(_WHOLE_STEP): executable}


def _manifest(
    key: str,
    mode: Mode,
    options: CompileOptions,
    interface: StepInterface,
    report: CompileReport,
    files: dict[str, bytes],
) -> Manifest:
    overall, fabric, whole = report.performance.overall, report.fabric, Interface.from_step(interface)
    return Manifest(
        format_version=FORMAT_VERSION,
        tool_version=tool_version(),
        key=key,
        mode=mode,
        precision=options.precision,
        batch_size=report.batch_size,
        interface=whole,
        executables=[ExecutableEntry(name=_WHOLE_STEP, interface=whole)],
        fabric=FabricName(name=fabric.name, processing_elements=fabric.processing_elements),
        estimates=PipelinedEstimates(
            execution=options.execution,
            deltat_cycles=overall.deltat_cycles,
            samples_per_s=overall.samples_per_s,
            active_pes=overall.active_pes,
            total_utilization=report.placement.total_utilization,
        ),
        versions=tool_versions(),
        files=file_entries(files),
    )


def kernels_text(module: ModuleOp, graph: KernelGraph) -> str:
    """The module with the name of its kernel on every op (`cs.kernel`); a valid module like any other."""
    body = list(graph_function(module).body.block.ops)
    # On the module itself for as long as it takes to print it: a copy takes as long as the text.
    for kernel in graph.kernels:
        name = StringAttr(kernel.name)
        for index in kernel.op_indices:
            body[index].attributes[KERNEL] = name
    try:
        return print_module(module)
    finally:
        for op in body:
            op.attributes.pop(KERNEL, None)


def _mode(module: ModuleOp) -> Mode:
    attribute = graph_function(module).attributes.get(MODE)
    text = attribute.data if isinstance(attribute, StringAttr) else None
    for mode in _MODES:
        if mode == text:
            return mode
    raise InvalidModuleError(f"func.func @graph: {MODE} is {attribute}, expected one of {', '.join(_MODES)}")


class _Stages:
    """Counts the stages of a compilation for whoever shows them."""

    def __init__(self, total: int, progress: Progress | None) -> None:
        self._total = total
        self._done = 0
        self._progress = progress

    @contextlib.contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Announces a stage, and counts it when it has succeeded."""
        self._tell(name)
        yield
        self._done += 1

    def finish(self) -> None:
        """Announces the end."""
        self._tell("Completed")

    def _tell(self, name: str) -> None:
        if self._progress is not None:
            self._progress(name, self._done, self._total)
