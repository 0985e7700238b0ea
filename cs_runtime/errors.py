"""What can go wrong in a run; every message says what was got, what was expected and what to do."""

from __future__ import annotations

from pathlib import Path

from cs_toolkit.errors import ToolkitError, WriteError


class RunError(ToolkitError):
    """An expected failure of a run."""


class ModelDirError(RunError, WriteError):
    """`model_dir` cannot be written."""

    def __init__(self, path: Path, cause: OSError) -> None:
        super().__init__(
            f"cannot write to model_dir '{path}': {cause.strerror or cause}; "
            "free space or give a writable directory (--model_dir)"
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
    """A label is no class, or an id no row of its table."""

    def __init__(self, step: int, value: int, tensor: str, limits: tuple[int, int], use: str) -> None:
        self.step = step
        low, high = limits
        skipped = f", or {low} for what does not count" if low < 0 else ""
        super().__init__(
            f"'{tensor}' holds {value} in step {step}, expected 0 to {high - 1}{skipped}: these are {use}. "
            "Correct the input function"
        )


class NoSystemError(RunError):
    """A run on the CS system was asked for without saying where it is."""

    exit_code = 2

    def __init__(self) -> None:
        super().__init__(
            "no address of a CS system; pass --cs_ip=IP:PORT (start a simulated one with `cs_system serve`)"
        )


class GlobalStepError(RunError):
    """The program's own count of steps is not that of the run."""

    def __init__(self, steps: int, global_step: int) -> None:
        super().__init__(
            f"the program's global step is {global_step} after step {steps}, expected the same number: it "
            "says which batch a continued run takes. Advance it by exactly 1 in every step, "
            "optimizer.minimize(loss, global_step=...) does"
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
            f"the input ended before step {first_step + 1}: continuing from global step {first_step} leaves "
            "out the batches that are already trained on. Add repeat() to the dataset, or start in an empty "
            "model_dir"
        )
