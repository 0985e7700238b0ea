"""Errors of PyTorch programs; each message has the value found, the expected one, and a remedy."""

from __future__ import annotations

import re
from pathlib import Path
from pickle import UnpicklingError

from cs_runtime.exits import first_line
from cs_toolkit.errors import ToolkitError, UsageError

_WITHOUT_GPU = ("Torch not compiled with CUDA enabled", "Found no NVIDIA driver")

# The signature of HDF5 begins with 0x89, by chance an opcode of pickle, and "H" (72), which is none.
_HDF5_AS_PICKLE = re.compile(r"invalid load key, 'H'|Unsupported operand 72\b")


def essence(error: Exception) -> str:
    """Return the message of a PyTorch error in one line, with a suggestion for known errors."""
    first = first_line(error)
    if isinstance(error, UnpicklingError) and _HDF5_AS_PICKLE.search(str(error)):
        return (
            "torch.load reads a file in HDF5, expected one of torch.save: checkpoints in HDF5 are read by "
            "cstorch.load(path), which is cbtorch.load in programs of releases 1.x, and "
            "torch.save(cstorch.load(path), other) converts one"
        )
    if not first.startswith(_WITHOUT_GPU):
        return first
    return (
        f"{first}; a model or a tensor is moved to a GPU, expected none to be moved: cstorch.compile puts a "
        "model where its steps run; drop .cuda(), .to('cuda') and device='cuda'"
    )


class StepError(ToolkitError):
    """A step that cannot be recorded."""


class TensorReadError(StepError):
    """The value of a tensor is read while a step is recorded, before it has a value."""

    def __init__(self, how: str, line: str | None) -> None:
        super().__init__(
            f"{line or 'line unknown'}: a tensor is {how} inside the step, where it has no value, because "
            "the step is recorded once and runs on the CS system; read values in a function with "
            "@cstorch.step_closure, and choose with torch.where instead of a Python condition"
        )


class ValueUnavailableError(StepError):
    """The value of a tensor that a step computes is read outside of a step closure."""

    def __init__(self, how: str, line: str | None) -> None:
        super().__init__(
            f"{line or 'line unknown'}: a tensor that the step computes is {how}, but its value is on the CS "
            "system; pass the tensor to a function with @cstorch.step_closure and read it there"
        )


class TensorWriteError(StepError):
    """A step writes into a tensor that is not part of the state of a compiled model."""

    def __init__(self, operation: str, line: str | None) -> None:
        super().__init__(
            f"{line or 'line unknown'}: {operation} writes into a tensor of this CPU inside the step, which "
            "would be lost; expected a buffer of the compiled model (register_buffer), or a tensor that the "
            "step makes on the device, as with torch.zeros_like(x) or torch.zeros(n, device=x.device)"
        )


class LostWriteError(StepError):
    """A program writes into its state between two steps while the state is on the system."""

    def __init__(self, operation: str, line: str | None) -> None:
        super().__init__(
            f"{line or 'line unknown'}: {operation} writes into the state of a running loop after its step, "
            "which would be lost: the state is on the CS system; do it in the step (in a session before the "
            "first value is read), or before or after the loop"
        )


class SelectionError(StepError):
    """Rows that a mask selects are used in a way that needs their number."""

    def __init__(self, what: str, line: str | None) -> None:
        super().__init__(
            f"{line or 'line unknown'}: {what}: how many rows it has depends on values, and sizes of a step "
            "do not; keep all rows and write torch.where(mask, x, 0), reduce the selection (mean, sum, max), "
            "or write it back by the same mask (y[mask] = x[mask])"
        )


class ImplicitLoopError(StepError):
    """An invalid loop over tokens inside a step."""

    def __init__(self, what: str, line: str | None) -> None:
        super().__init__(f"{line or 'line unknown'}: {what}")


class SessionError(StepError):
    """Invalid use of a session."""


class RandomOutsideError(StepError):
    """A step draws random numbers on this CPU, which would be equal in every step."""

    def __init__(self, operation: str, line: str | None) -> None:
        super().__init__(
            f"{line or 'line unknown'}: {operation} draws on this CPU inside the step, where every step "
            "would see the same numbers; make them with torch.rand or torch.randn without a generator, or "
            "draw in the input function"
        )


class OptimizerInStepError(StepError, TypeError):
    """A recorded step cannot use this optimizer or schedule."""

    def __init__(self, why: str, line: str | None) -> None:
        super().__init__(f"{line or 'line unknown'}: {why}")


class ModelMovedError(StepError):
    """A compiled model, or a tensor of it, is moved to a device that steps do not run on."""

    def __init__(self, device: str, line: str | None) -> None:
        super().__init__(
            f"{line or 'line unknown'}: a tensor of a model is moved to '{device}', expected none to be "
            "moved: cstorch.compile puts a model where its steps run; drop .to(), .cuda() and the like, and "
            "read a value with .cpu()"
        )


class ConfigureError(UsageError):
    """An invalid configuration."""


class InputError(ToolkitError):
    """An input function that cannot feed the CS system."""


class InputTransferError(InputError):
    """The file with the input function of a run cannot be written, or is not the chief's."""


class InputNotSentError(InputError):
    """An input function refers to an object that belongs to the process of the chief."""

    def __init__(self, culprit: str, error: Exception) -> None:
        super().__init__(
            f"the input function cannot be sent to the workers because of {culprit}: {error}; every worker "
            "is a separate process and calls the function there: create such objects inside the function"
        )


class WorkersEndedError(InputError):
    """The workers that the program has started ended before it."""

    def __init__(self, logs: Path) -> None:
        super().__init__(
            f"the workers that this program has started ended before it; the reason is above, or in their "
            f"logs in '{logs}'; correct the input function, or set num_workers_per_csx=1 to call it in this "
            "process"
        )


class LoaderError(InputError, TypeError):
    """A loop over an object that the workers cannot create themselves."""

    def __init__(self, got: str) -> None:
        super().__init__(
            f"Detected that dataloader was not wrapped using a cstorch.utils.data.DataLoader: got a {got}; "
            "write DataLoader(input_fn, *args) with a function that returns the torch DataLoader, because "
            "every worker makes its own"
        )


class CompileCallError(UsageError):
    """A call of `compile` without a model, or for an unavailable backend."""


class ClosureError(StepError):
    """A step closure is called outside of a loop, or with a tensor that has no value."""


class StateUnavailableError(StepError):
    """The state is read after a step at which the system does not pause."""

    def __init__(self, step: int, checkpoints: object) -> None:
        super().__init__(
            f"the state of the model is read after step {step}, when the CS system is ahead of the program; "
            f"expected the first or the last step{f', or one of {checkpoints}' if checkpoints else ''}: set "
            "checkpoint_steps=N, of cstorch.configure or of the DataExecutor"
        )


class LoopLeftError(StepError):
    """The state is read after a loop that the program has left when the state was on the system."""

    def __init__(self, step: int, checkpoints: object) -> None:
        super().__init__(
            "the state of the model is read, but it was lost when the program left its loop after step "
            f"{step}: the CS system was ahead of the program; leave the loop after its first or last step, "
            f"or after one of the checkpoint_steps (now {checkpoints or 'none'})"
        )


class OptimizerArgumentError(UsageError, ValueError):
    """An invalid argument of an optimizer; a `ValueError`, as programs expect."""


class OptimizerStateError(ToolkitError, RuntimeError):
    """The state belongs to another optimizer, or this optimizer has none."""


class ScheduleError(ToolkitError, ValueError):
    """An invalid schedule of learning rates or weight decays."""


class ScheduleTypeError(ToolkitError, TypeError):
    """An argument of a schedule has an invalid type."""


class ScheduleFunctionError(StepError):
    """A function of a schedule needs the epoch as a Python number, which a traced step does not have."""

    def __init__(self, schedule: str, function: str, reason: str) -> None:
        super().__init__(
            f"{schedule}: {function} needs the epoch as a Python number, but it is a tensor without a value "
            "while the step is recorded; write the function with torch operations only, as 0.95**epoch, "
            f"torch.exp(-epoch) or torch.where(epoch < 10, 1.0, 0.1) ({reason})"
        )


class CheckpointError(ToolkitError):
    """A checkpoint cannot be written or read."""
