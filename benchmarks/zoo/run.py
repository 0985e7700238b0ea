"""Runs one architecture in one way, in this process, and says how that ended."""

from __future__ import annotations

import resource
import sys
import traceback
from dataclasses import asdict, dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any

from benchmarks.zoo.architecture import SkippedError, Workload
from benchmarks.zoo.training import Reference, Trained
from csrun.tasks.roles import TaskInfo

LIBRARIES = {"torch": ("transformers", "timm"), "tensorflow": ("keras",)}
"""Of each framework."""

WAYS = ("pipelined", "weight_streaming", "workers")
"""How an architecture is trained: pipelined, by weight streaming, in a job of csrun_wse with two workers."""

VALIDATE = "validate"
"""Only traces the step and checks that it can be compiled, which takes a tenth of the time."""

STATUSES = ("ok", "refused", "wrong", "crashed", "timeout", "skipped")
_LONGEST = 3000


@dataclass
class Result:
    """The end of a run.

    Attributes:
        library: "transformers", "timm" or "keras".
        name: Of the architecture.
        way: One of `WAYS`.
        status: One of `STATUSES`. `refused` is an error of ours with a message for the user, `crashed` any
            other one, `skipped` an architecture that its own framework does not train.
        reason: The message of an error, or of what differs.
        about: What was trained.
        losses: The largest relative difference of a loss; None where there is none.
        updates: The largest relative difference of what was added to a tensor.
        compile_s: CPU seconds of the program from its first call of ours to its last.
        trace: The traceback of an error.
    """

    library: str
    name: str
    way: str
    status: str = "crashed"
    reason: str = ""
    about: str = ""
    losses: float | None = None
    updates: float | None = None
    compile_s: float | None = None
    trace: str = field(default="", repr=False)

    def as_dict(self) -> dict[str, Any]:
        """The result as JSON has it."""
        return asdict(self)


def models_of(library: str) -> Any:
    """The module that knows the architectures of a library."""
    return import_module(f"benchmarks.zoo.{library}_models")


def training_of(library: str) -> Any:
    """The module that trains models of a library's framework."""
    return import_module("benchmarks.zoo." + ("keras_training" if library == "keras" else "torch_training"))


def run(library: str, name: str, way: str, folder: Path) -> Result:
    """Trains an architecture by its framework and on the CS system, and compares.

    Args:
        library: "transformers", "timm" or "keras".
        name: Of the architecture.
        way: One of `WAYS`; of a job of csrun_wse this is what its chief does.
        folder: For the files of the run.
    """
    result = Result(library, name, way)
    try:
        workload = models_of(library).workload(name)
        result.about = workload.about
        _compare(result, training_of(library), workload, folder)
    except SkippedError as error:
        result.status, result.reason = "skipped", str(error)[:_LONGEST]
    except Exception as error:
        expected = isinstance(code := getattr(error, "exit_code", None), int) and code < 3
        result.status = "refused" if expected else "crashed"
        result.reason = (str(error) if expected else f"{type(error).__name__}: {error}")[:_LONGEST]
        result.trace = traceback.format_exc()
        traceback.print_exc()
    return result


def _compare(result: Result, training: Any, workload: Workload, folder: Path) -> None:
    before = _cpu_seconds()
    if result.way == VALIDATE:
        try:
            training.train_on_system(workload, folder, validate_only=True)
        finally:
            result.compile_s = round(_cpu_seconds() - before, 2)
        result.status = "ok"
        return
    try:
        first = training.state_of(workload.model)
        reference: Reference = training.expected(workload)
    except SkippedError:
        raise
    except Exception as error:
        raise SkippedError(f"its framework does not train it: {type(error).__name__}: {error}") from error
    before = _cpu_seconds()
    try:
        execution = "weight_streaming" if result.way == "weight_streaming" else "pipelined"
        found: Trained = training.train_on_system(workload, folder, execution)
    finally:
        result.compile_s = round(_cpu_seconds() - before, 2)
    seen, rounding = reference.difference(first, found), reference.rounding
    result.losses, result.updates = seen.losses, seen.updates
    result.status = "ok" if seen.is_small(rounding) else "wrong"
    if not seen.is_small() and rounding.is_ill_conditioned:
        raise SkippedError(
            f"ill-conditioned: rounding changes updates of {rounding.tensor} by {rounding.updates:.1g} "
            f"of themselves in its own framework"
        )
    if result.status == "wrong":
        result.reason = (
            f"losses {found.losses}, expected {reference.trainings[0].losses}; "
            f"update of {seen.tensor} differs by {seen.updates:.2g}; "
            f"rounding makes {rounding.losses:.2g} and {rounding.updates:.2g}"
        )


def _cpu_seconds() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def main() -> None:
    """Entry point of a job's tasks: `python -m benchmarks.zoo.run LIBRARY NAME WAY FOLDER`."""
    import json

    library, name, way, folder = sys.argv[1:]
    models_of(library).preload()  # some models need more than they import
    training_of(library).preload()  # one thread: those of three tasks would wait for each other's CPUs
    if TaskInfo.from_environment().role == "worker":  # streams its batches, and has nothing to compare
        training_of(library).train_on_system(models_of(library).workload(name), Path(folder))
        return
    result = run(library, name, way, Path(folder))
    (Path(folder) / "result.json").write_text(json.dumps(result.as_dict()))
    sys.exit(0 if result.status in ("ok", "skipped") else 1)  # workers wait until a chief says that it ends


if __name__ == "__main__":
    main()
