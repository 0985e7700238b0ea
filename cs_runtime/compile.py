"""Validate and compile the step of a program on this machine, and report the result to the user."""

from __future__ import annotations

import json
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

from cgc.driver import CompileResult, ValidationResult, compile_step, validate_step
from cgc.execution.compilation import CompileOptions
from cgc.manifest import REPORT_HTML, REPORT_JSON, REPORT_TEXT, Provenance
from cs_runtime import files, run_files
from cs_runtime.errors import CallError, ModelDirError
from cs_runtime.exits import record_failures
from cs_runtime.options import RunSettings
from cs_runtime.program import FrontEnd, StepProgram
from cs_runtime.progress import Timeline
from cs_runtime.run_files import write_run_files
from cs_runtime.terminal import ROWS, format_by_family, print_report, shorten_report
from cs_system.address import parse_addresses
from cs_system.client.pool import SystemPool
from cs_toolkit import __version__
from cs_toolkit.execution_options import OptionError, Streaming
from cs_toolkit.fabric import Fabric, load_fabric
from cs_toolkit.figures import format_rate
from cs_toolkit.garbage import infrequent_collection
from cs_toolkit.step import ExecutionChoice

log = logging.getLogger("cs_runtime")

# File in `model_dir` with the kernels of a validated program.
KERNEL_LIST = "kernels.txt"


@dataclass(frozen=True)
class Target:
    """The hardware that a program is compiled for.

    Attributes:
        fabric: The fabric of one wafer.
        system: Name and version of the CS system; None if the program named none.
    """

    fabric: Fabric
    system: dict[str, Any] | None = None


def target_of(settings: RunSettings) -> Target:
    """Return the system at `cs_ip` with its fabric, or the fabric that the options name.

    Raises:
        CallError: Options exclude each other, the batch cannot be split as requested, or the system has fewer
            wafers than requested.
    """
    try:
        settings.options.check_batch(settings.batch_size, trains=settings.mode == "train")
    except OptionError as error:
        raise CallError(str(error)) from None
    if settings.cs_ip is None:
        return Target(load_fabric(settings.fabric))
    infos = SystemPool(parse_addresses(settings.cs_ip)).statuses()
    count = settings.options.share.wafers
    # The systems of a pool should have one fabric; the others are skipped when the job reserves one.
    info = next((info for info in infos if info.num_csx >= count), infos[0])
    if count > info.num_csx:
        raise CallError(
            f"num_csx is {count}, the CS system at {info.address} has {info.num_csx}; ask for "
            f"fewer, or start it with `cs_system serve --num-csx={count}`"
        )
    return Target(Fabric.model_validate(info.fabric_spec), {"name": info.name, "version": info.version})


def compile_or_validate(front_end: FrontEnd, settings: RunSettings) -> None:
    """Compile or validate the program, as the mode of the settings states, and run nothing."""
    if settings.mode == "validate_only":
        validate_program(front_end, settings)
    else:
        compile_program(front_end, settings)


@infrequent_collection()
def validate_program(front_end: FrontEnd, settings: RunSettings) -> ValidationResult:
    """Check that the program can be compiled, without placing it, and write the run files.

    Raises:
        cgc.errors.CompileError: The compiler does not support an operation of the program.
        ModelDirError: `model_dir` is not writable.
    """
    from cgc.report import render_kernel_list  # lazy: a cached compile needs no kernels

    timeline = Timeline()
    with record_failures(settings.artifact_dir):
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
    text = render_kernel_list(result.graph)
    files.write_text(path, text)
    kernels = [(one.family, one.generated, len(one.ops)) for one in result.graph.kernels]
    print_report(
        shorten_report(text, file=str(path)) if len(kernels) <= ROWS else format_by_family(kernels, str(path))
    )
    log.info("every operation can run on the CS system; compile_only places the kernels")
    return result


def compile_program(front_end: FrontEnd, settings: RunSettings) -> CompileResult:
    """Compile the program or reuse its artifact, and write the run files.

    Raises:
        cgc.errors.CompileError: The program cannot be compiled or placed.
        ModelDirError: `model_dir` is not writable.
    """
    timeline = Timeline()
    with record_failures(settings.artifact_dir):
        files.check_writable(settings.model_dir)
        target = target_of(settings)
        result = compile_for(_trace(front_end, timeline), settings, target, timeline)
    _write_files(settings, timeline, target, front_end, result)
    print_report(shorten_report(result.report_text))
    _log_best_suggestion(result)
    log.info(
        "all kernels, floorplan and ways to make it faster, for a browser: %s; as text: %s next to it",
        result.artifact.path / REPORT_HTML,
        REPORT_TEXT,
    )
    return result


@infrequent_collection()
def compile_for(
    program: StepProgram, settings: RunSettings, target: Target, timeline: Timeline
) -> CompileResult:
    """Compile the program or reuse its artifact, as part of a run; only the artifact is written."""
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
            made=collect_provenance(program.model),
        )
    for warning in result.warnings:
        log.warning("%s", warning)
    if settings.options.needs_streaming:
        log.info(
            "execution auto: weight streaming, because num_csx is %d, and several CS systems share a batch "
            "only that way",
            settings.options.num_csx,
        )
    for notice in result.notices:
        log.info("%s", notice)
    if result.reused:
        log.info("Cached compilation found for this model configuration")
    log.info("=============== Cerebras Compilation Completed ===============")
    return result


def _log_best_suggestion(result: CompileResult) -> None:
    """Log the change with the largest predicted gain, if there is one."""
    suggestions = json.loads(result.artifact.read(REPORT_JSON))["suggestions"]
    if suggestions:
        best = max(suggestions, key=lambda one: one["times"])
        log.info(
            "predicted to be %.3g times as fast, %s samples/s, with %s: %s",
            best["times"],
            format_rate(best["samples_per_s"]),
            best["change"],
            best["how"].get(_front_end(), best["change"]),
        )


def _front_end() -> str:
    """Return the front end of the program, which has imported it."""
    return next((name for name in ("estimator", "cstorch") if name in sys.modules), "")


def _options(settings: RunSettings) -> CompileOptions:
    options = settings.options
    execution: ExecutionChoice = "weight_streaming" if options.needs_streaming else options.execution
    return CompileOptions(
        precision=options.precision,
        execution=execution,
        replicas=options.num_replicas,
        streaming=Streaming() if execution == "pipelined" else options.streaming,
    )


def _trace(front_end: FrontEnd, timeline: Timeline) -> StepProgram:
    with timeline.phase("trace"):
        return front_end.program()


def _log_wait(holder: str) -> None:
    log.info("%s is compiling the same program; waiting for its result", holder)


def _log_stage(stage: str, number: int, total: int) -> None:
    if stage != "Completed":
        log.info("compile: %s (%d/%d)", stage, number, total)


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


def collect_provenance(model: str) -> Provenance:
    """Collect the provenance of a compile in the current process.

    Args:
        model: The program's name of its model.
    """
    frameworks = {name: getattr(sys.modules.get(name), "__version__", None) for name in _FRAMEWORKS}
    return Provenance(
        model=model,
        program=_relative_path(sys.argv[0]),
        command=shlex.join(["python", *sys.argv]),
        compiled_at=time.strftime("%Y-%m-%d %H:%M:%S %z"),
        front_end=_front_end(),
        versions={
            "toolkit": __version__,
            **{name: version for name, version in frameworks.items() if version},
            "jax": metadata.version("jax"),
            "python": python_version(),
        },
    )


def _relative_path(path: str) -> str:
    """Return a path relative to the current directory if it is below it, else the absolute path."""
    if not path or path.startswith("-"):
        return ""
    whole = Path(path).absolute()
    return str(whole.relative_to(Path.cwd())) if whole.is_relative_to(Path.cwd()) else os.fspath(whole)
