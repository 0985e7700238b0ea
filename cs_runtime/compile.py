"""Validate and compile a step program on this machine, and tell the user about it."""

from __future__ import annotations

import logging
import os
import shlex
import sys
import time
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from platform import python_version
from typing import Any

from cgc.driver import CompileOptions, CompileResult, ValidationResult, compile_step, validate_step
from cgc.manifest import REPORT_HTML, REPORT_TEXT
from cgc.provenance import Provenance
from cs_runtime import files, run_files
from cs_runtime.errors import CallError, ModelDirError
from cs_runtime.exits import noted_failures
from cs_runtime.options import RunSettings
from cs_runtime.program import FrontEnd, StepProgram
from cs_runtime.progress import Timeline
from cs_runtime.run_files import write_run_files
from cs_runtime.terminal import ROWS, by_family, shortened, show
from cs_system.client import SystemClient, parse_address
from cs_toolkit.execution_options import Streaming, check_replicas, micro_batch_fault
from cs_toolkit.fabric import Fabric, load_fabric
from cs_toolkit.garbage import seldom_searched
from cs_toolkit.step import ExecutionChoice
from cs_toolkit.version import __version__

log = logging.getLogger("cs_runtime")

KERNEL_LIST = "kernels.txt"
"""In `model_dir`: the kernels of a validation."""


@dataclass(frozen=True)
class Target:
    """The fabric that a program is compiled for, and the system when one was named.

    Attributes:
        num_csx: how many wafers of it share a batch.
        max_wgt_servers: how many of its MemoryX processes may share out the layers; None: all.
    """

    fabric: Fabric
    system: dict[str, Any] | None = None
    num_csx: int = 1
    max_wgt_servers: int | None = None


def target_of(settings: RunSettings) -> Target:
    """The fabric of the system at `cs_ip`, else the one that the settings name."""
    _check_share(settings)
    count = settings.streaming.num_csx
    if settings.cs_ip is None:
        return Target(load_fabric(settings.fabric))
    with SystemClient(parse_address(settings.cs_ip)) as client:
        info = client.info()
    if count > info.num_csx:
        raise CallError(
            f"num_csx is {count}, the CS system at {info.address} has {info.num_csx}; ask for "
            f"fewer, or start it with `cs_system serve --num-csx={count}`"
        )
    fabric = Fabric.model_validate(info.fabric_spec)
    system = {"name": info.name, "version": info.version}
    return Target(fabric, system, count, settings.max_wgt_servers)


def _check_share(settings: RunSettings) -> None:
    """Whether so many wafers, or copies of the model on one, can share a batch.

    Raises:
        CallError: the wafers cannot.
        ReplicaChoiceError: the copies cannot.
    """
    count = settings.streaming.num_csx
    check_replicas(settings.num_replicas, settings.execution, count, settings.batch_size)
    if count > 1 and settings.execution == "pipelined":
        raise CallError(
            f"num_csx is {count} with execution '{settings.execution}', expected 1: several CS systems share "
            "a batch by weight streaming; say execution: weight_streaming, or auto"
        )
    if settings.batch_size % count:
        raise CallError(
            f"a batch of {settings.batch_size} samples cannot be shared equally by {count} CS systems; "
            f"choose a batch size that {count} divides, or another num_csx"
        )
    fault = micro_batch_fault(settings.batch_size, settings.streaming) if settings.mode == "train" else None
    if fault is not None:
        raise CallError(fault)
    if settings.streaming.micro_batch_size != "auto" and settings.execution == "pipelined":
        raise CallError(
            f"micro_batch_size is {settings.streaming.micro_batch_size} with execution 'pipelined', expected "
            "none: samples flow through the pipeline one by one; leave it out, or say execution: auto"
        )


@seldom_searched()
def validate_program(front_end: FrontEnd, settings: RunSettings) -> ValidationResult:
    """Checks that the program can be compiled, without placing it; writes the summaries.

    Raises:
        cgc.errors.CompileError: the program uses something that the compiler does not know.
        ModelDirError: `model_dir` is not writable.
    """
    from cgc.report import kernel_list_text  # late: a compilation that is found needs no kernels

    timeline = Timeline()
    with noted_failures(settings.artifact_dir):
        files.check_writable(settings.model_dir)
        target = target_of(settings)
        program = _trace(front_end, timeline)
        log.info("=============== Starting Cerebras Compilation ===============")
        with timeline.phase("validate"):
            result = validate_step(
                program.module,
                _options(settings),
                target.fabric,
                _log_stage,
                interface=program.interface,
            )
    log.info("=============== Cerebras Compilation Completed ===============")
    _write_files(settings, timeline, target, front_end, None)
    path = settings.model_dir / KERNEL_LIST
    text = kernel_list_text(result.graph)
    files.write_text(path, text)
    kernels = [(one.family, one.generated, len(one.ops)) for one in result.graph.kernels]
    show(shortened(text, file=str(path)) if len(kernels) <= ROWS else by_family(kernels, str(path)))
    log.info("every operation can run on the CS system; compile_only places the kernels")
    return result


def compile_program(front_end: FrontEnd, settings: RunSettings) -> CompileResult:
    """Compiles the program, or finds it compiled; writes the summaries.

    Raises:
        cgc.errors.CompileError: the program cannot be compiled or placed.
        ModelDirError: `model_dir` is not writable.
    """
    timeline = Timeline()
    with noted_failures(settings.artifact_dir):
        files.check_writable(settings.model_dir)
        target = target_of(settings)
        result = compile_for(_trace(front_end, timeline), settings, target, timeline)
    _write_files(settings, timeline, target, front_end, result)
    show(shortened(result.report_text))
    log.info(
        "all kernels, floorplan and what would make it faster, for a browser: %s; as text: %s beside it",
        result.artifact.path / REPORT_HTML,
        REPORT_TEXT,
    )
    return result


@seldom_searched()
def compile_for(
    program: StepProgram, settings: RunSettings, target: Target, timeline: Timeline
) -> CompileResult:
    """Compiles within a run: no files besides the artifact."""
    log.info("=============== Starting Cerebras Compilation ===============")
    with timeline.phase("compile"):
        result = compile_step(
            program.module,
            settings.artifact_dir,
            _options(settings),
            target.fabric,
            _log_stage,
            interface=program.interface,
            on_wait=_log_wait,
            made=provenance(program.model),
        )
    for warning in result.warnings:
        log.warning("%s", warning)
    for notice in (*_shared(settings), *result.notices):
        log.info("%s", notice)
    if result.reused:
        log.info("Cached compilation found for this model configuration")
    log.info("=============== Cerebras Compilation Completed ===============")
    return result


def _options(settings: RunSettings) -> CompileOptions:
    execution: ExecutionChoice = "weight_streaming" if _shared(settings) else settings.execution
    return CompileOptions(
        precision=settings.precision,
        execution=execution,
        replicas=settings.num_replicas,
        streaming=Streaming() if execution == "pipelined" else settings.streaming,
    )


def _shared(settings: RunSettings) -> tuple[str, ...]:
    """Why the wafers that share a batch leave auto no choice; nothing where they do not."""
    count = settings.streaming.num_csx
    if count == 1 or settings.execution != "auto":
        return ()
    return (
        f"execution auto: weight streaming, because num_csx is {count}: several CS systems share a batch "
        "that way alone",
    )


def _trace(front_end: FrontEnd, timeline: Timeline) -> StepProgram:
    with timeline.phase("trace"):
        return front_end.program()


def _log_wait(holder: str) -> None:
    log.info("%s is compiling the same program; waiting for its result", holder)


_QUICK_STAGES = ("Checking the graph", "Estimating performance", "Writing the report", "Completed")
"""Nobody waits for them; all that a compilation says fits a screen."""


def _log_stage(stage: str, done: int, total: int) -> None:
    if stage not in _QUICK_STAGES:
        log.info("compile: %s (%d/%d)", stage, done, total)


def _write_files(
    settings: RunSettings,
    timeline: Timeline,
    target: Target,
    front_end: FrontEnd,
    result: CompileResult | None,
) -> None:
    artifact = None if result is None else result.artifact
    estimates = None if artifact is None else artifact.estimates
    model_dir = settings.model_dir
    files.write_json(
        model_dir / "fabric.json", run_files.fabric_json(target.fabric, estimates, target.system)
    )
    write_run_files(
        model_dir,
        run_files.run_summary(
            settings,
            timeline,
            "completed",
            artifact=None if artifact is None else str(artifact.path),
            compile_reused=None if result is None else result.reused,
        ),
        run_files.performance_json(
            fabric=target.fabric,
            total_samples=0,
            total_time_s=0.0,
            estimates=estimates,
            compile_time_s=timeline.seconds("compile"),
            programming_time_s=None,
        ),
    )
    try:
        run_files.write_input_info(
            settings,
            front_end.inputs(),
            None if estimates is None else estimates.samples_per_s,
            None if artifact is None else artifact.path,
            Path.cwd(),
        )
    except ModelDirError as error:
        log.warning(
            "%s was not written into the current directory: %s",
            run_files.INPUT_INFO_FILE,
            error.__cause__,
        )


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
