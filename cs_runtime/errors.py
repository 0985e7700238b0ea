"""Expected errors of runs and of users' programs.

Every message states the actual and the expected value, and advice.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from cs_toolkit.errors import ToolkitError, UsageError, WriteError


class RunError(ToolkitError):
    """An expected failure of a run."""


class ModelDirError(RunError, WriteError):
    """`model_dir` cannot be written."""

    def __init__(self, path: Path, cause: OSError) -> None:
        super().__init__(
            f"cannot write to model_dir '{path}': {cause.strerror or cause}; "
            "free space there, or choose a writable model_dir"
        )


class ModelDirInUseError(RunError):
    """Another process trains in the same `model_dir`."""

    def __init__(self, path: Path, holder: str) -> None:
        super().__init__(
            f"model_dir '{path}' is in use by another training run: {holder}. Wait until it ends, end it, or "
            "choose another model_dir; evaluation and prediction may run at the same time"
        )


class NonFiniteLossError(RunError):
    """The loss became NaN or infinite."""

    def __init__(self, step: int, loss: float, model_dir: Path) -> None:
        self.step = step
        super().__init__(
            f"the loss is {loss} at global step {step}, expected a finite number; the checkpoints in "
            f"'{model_dir}' are from before it. Lower the learning rate, check the input for NaN, or "
            "clip the gradients"
        )


class OutOfRangeError(RunError):
    """A label is not a class, or an id is not a row of its table."""

    def __init__(self, step: int, value: int, tensor: str, limits: tuple[int, int], use: str) -> None:
        self.step = step
        low, high = limits
        skipped = f", or {low} for padding" if low < 0 else ""
        super().__init__(
            f"'{tensor}' holds {value} in step {step}, expected 0 to {high - 1}{skipped}: these are {use}. "
            "Correct the input function"
        )


class CheckFailedError(RunError):
    """A condition that the user's program checks in its step does not hold."""

    def __init__(self, step: int, error: str) -> None:
        self.step = step
        super().__init__(f"in step {step}, at {error}")


class NoSystemError(RunError):
    """A run on the CS system was requested without its address."""

    exit_code = 2

    def __init__(self, num_tasks: int = 1) -> None:
        which = "no address of a CS system"
        if num_tasks > 1:
            which += f", which the {num_tasks} tasks of this job must all reach"
        super().__init__(
            f"{which}: pass --cs_ip=IP:PORT, set CS_IP or cs_ip of the site (`cs_system serve` starts a "
            "simulated system), or run the program with csrun_cpu"
        )


class EmbeddedSystemError(RunError):
    """The program's embedded CS system did not start."""

    def __init__(self, log_file: Path, reason: str) -> None:
        super().__init__(
            f"the simulated CS system of this program did not start: {reason}\nIts log is '{log_file}'; "
            "start one with `cs_system serve` and give its address"
        )


class GlobalStepError(RunError):
    """The program's global step differs from the number of steps of the run."""

    def __init__(self, steps: int, global_step: int) -> None:
        super().__init__(
            f"the program's global step is {global_step} after step {steps}, expected the same number, "
            "because it decides which batch a resumed run reads first. Increment it by exactly 1 in every "
            "step, as optimizer.minimize(loss, global_step=...) does"
        )


class InputChangedError(RunError):
    """A run resumes with another number of workers, whose shares of the input the toolkit does not know."""

    exit_code = 2

    def __init__(self, step: int, before: int, workers: int) -> None:
        super().__init__(
            f"the run that reached global step {step} had {before} worker(s), this one has {workers}; the "
            "program determines what each worker reads, so samples would be repeated and lost. Resume with "
            f"{before} worker(s), that is {before + 1} tasks of csrun_wse, or accept the change with "
            "csrun_wse --allow-input-change"
        )


class InputOrderError(RunError):
    """The order of the input that the user wants is not possible."""

    exit_code = 2


class ShardingError(RunError):
    """A worker has to read another share of the input, and the program determines its share by itself."""

    exit_code = 2

    def __init__(self) -> None:
        super().__init__(
            "the input function does not ask for its share when it is called, so this worker cannot read the "
            "shards of another number of workers; resume with the number of workers of the run before, or "
            "accept the change with csrun_wse --allow-input-change"
        )


class NothingToDoError(RunError):
    """The input ended before the first step."""

    def __init__(self, first_step: int, *, skipped: bool) -> None:
        if first_step == 0 or not skipped:
            super().__init__(
                "the input has no batch: with drop_remainder=True it needs at least batch_size records. "
                "Check the files that input_fn reads and the batch size"
            )
            return
        super().__init__(
            f"the input ended before step {first_step + 1}: resuming from global step {first_step} skips the "
            "batches that earlier runs have used. Add repeat() to the dataset, or start in an empty model_dir"
        )


class FrontEndError(ToolkitError):
    """An expected failure of a user's program, reported by its front end."""


class CallError(FrontEndError, UsageError, ValueError):
    """An invalid call, regardless of the data; also a ValueError, as other libraries raise."""


class UnknownFieldError(CallError, TypeError):
    """A keyword argument that the class does not have; also a TypeError, as for any other class."""


class UnsupportedOnCsError(CallError):
    """A feature that the framework supports on a CPU, but the CS system does not."""


class InputFnError(CallError):
    """An input function has the wrong signature or returned an unusable value."""


class InputShapeError(InputFnError):
    """A component of a batch has a size that is unknown before the run."""

    def __init__(self, component: str, shape: Sequence[int | None] | None, what_to_do: str) -> None:
        self.fault_fields = {
            "node": component,
            "shape": None if shape is None else tuple(shape),
            "what_to_do": what_to_do,
        }
        got = "an unknown number of dimensions" if shape is None else f"the shape {_shape_text(shape)}"
        super().__init__(
            f"component '{component}' of the input has {got}, but the CS system is programmed for one fixed "
            f"shape. {what_to_do}"
        )


class ComponentTypeError(InputFnError):
    """A component of a batch has an element type that the CS system does not support."""

    def __init__(self, component: str, dtype: str, what_to_do: str) -> None:
        self.fault_fields = {"node": component, "dtype": dtype, "what_to_do": what_to_do}
        super().__init__(
            f"component '{component}' of the input has the type {dtype}, which the CS system does not "
            f"support; {what_to_do}"
        )


class CpuLimitError(FrontEndError):
    """The framework cannot run an operation of the program on a CPU."""

    def __init__(
        self, framework: str, limit: str, node: str, line: str | None, cause: str, what_to_do: str
    ) -> None:
        self.fault_fields = {"node": node, "source": line, "what_to_do": what_to_do}
        where = f"node '{node}'" + (f", line {line}" if line else "")
        super().__init__(f"{framework} on this CPU {limit}: {where} ({cause}). {what_to_do}")


class CheckpointWriteError(FrontEndError):
    """A checkpoint could not be written; older checkpoints are unchanged."""

    def __init__(self, prefix: str, cause: str, newest_good: str | None) -> None:
        kept = (
            f"the newest complete checkpoint is '{newest_good}'"
            if newest_good
            else "there is no older checkpoint"
        )
        super().__init__(
            f"cannot write checkpoint '{prefix}': {cause}; {kept}. "
            "Free space there, or choose a writable model_dir; the next start resumes from that checkpoint"
        )


class CheckpointReadError(FrontEndError):
    """A checkpoint is missing, corrupt, or belongs to another model."""

    def __init__(self, checkpoint: str, cause: str) -> None:
        self.cause = cause
        super().__init__(
            f"cannot restore checkpoint '{checkpoint}': {cause}. Choose a checkpoint of this model, "
            "or an empty model_dir to start from step 0"
        )


def _shape_text(shape: Sequence[int | None]) -> str:
    sizes = ", ".join("None" if size is None else str(size) for size in shape)
    return f"({sizes},)" if len(shape) == 1 else f"({sizes})"
