"""What can be wrong with a PyTorch program: what was got, what was expected, what to do."""

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
    """Return the message of an error of PyTorch in a line, with a suggestion where there is one."""
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
    """The value of a tensor is read while a step is recorded, when it has none."""

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
    """A step writes into a tensor that is no state of a compiled model."""

    def __init__(self, operation: str, line: str | None) -> None:
        super().__init__(
            f"{line or 'line unknown'}: {operation} writes into a tensor of this CPU inside the step, which "
            "would be lost; expected a buffer of the compiled model (register_buffer), or a tensor that the "
            "step makes on the device, as with torch.zeros_like(x) or torch.zeros(n, device=x.device)"
        )


class LostWriteError(StepError):
    """A program writes into its state between two steps, while the state is on the system."""

    def __init__(self, operation: str, line: str | None) -> None:
        super().__init__(
            f"{line or 'line unknown'}: {operation} writes into the state of a running loop behind its step, "
            "which would be lost: the state is on the CS system; do it in the step (in a session before the "
            "first value is read), or before or behind the loop"
        )


class SelectionError(StepError):
    """Rows that a mask selects are used in a way that needs to know how many they are."""

    def __init__(self, what: str, line: str | None) -> None:
        super().__init__(
            f"{line or 'line unknown'}: {what}: how many rows it has depends on values, and sizes of a step "
            "do not; keep all rows and write torch.where(mask, x, 0), reduce the selection (mean, sum, max), "
            "or write it back by the same mask (y[mask] = x[mask])"
        )


class ImplicitLoopError(StepError):
    """A loop over tokens inside of a step that cannot be."""

    def __init__(self, what: str, line: str | None) -> None:
        super().__init__(f"{line or 'line unknown'}: {what}")


class SessionError(StepError):
    """A session is used in a way in which its steps cannot run."""


class RandomOutsideError(StepError):
    """A step draws random numbers on this CPU, which would be the same in every step."""

    def __init__(self, operation: str, line: str | None) -> None:
        super().__init__(
            f"{line or 'line unknown'}: {operation} draws on this CPU inside the step, where every step "
            "would see the same numbers; make them with torch.rand or torch.randn without a generator, or "
            "draw in the input function"
        )


class OptimizerInStepError(StepError, TypeError):
    """An optimizer, or its schedule, that a recorded step cannot use."""

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
    """A configuration that cannot be."""


class InputError(ToolkitError):
    """An input function that cannot feed the CS system."""


class InputTransferError(InputError):
    """The file with the input function of a run cannot be written, or is not what the chief wrote."""


class InputNotSentError(InputError):
    """An input function refers to an object that belongs to the process of the chief."""

    def __init__(self, culprit: str, error: Exception) -> None:
        super().__init__(
            f"the input function cannot be handed to the workers because of {culprit}: {error}; every worker "
            "is a process of its own and calls the function there: make such objects inside of the function"
        )


class WorkersEndedError(InputError):
    """The workers that this program has started have ended before it."""

    def __init__(self, logs: Path) -> None:
        super().__init__(
            f"the workers that this program has started ended before it, for a reason that is above or in "
            f"their logs in '{logs}'; correct the input function, or set num_workers_per_csx=1 to have it "
            "called in this process"
        )


class LoaderError(InputError, TypeError):
    """A loop over something that the workers cannot make for themselves."""

    def __init__(self, got: str) -> None:
        super().__init__(
            f"Detected that dataloader was not wrapped using a cstorch.utils.data.DataLoader: got a {got}; "
            "write DataLoader(input_fn, *args) with a function that returns the torch DataLoader, because "
            "every worker makes its own"
        )


class CompileCallError(UsageError):
    """`compile` with something that is no model, or for a backend that is not there."""


class ClosureError(StepError):
    """A step closure outside of a loop, or with a tensor that has no value."""


class StateUnavailableError(StepError):
    """The state is read after a step at which the system does not stop."""

    def __init__(self, step: int, checkpoints: object) -> None:
        super().__init__(
            f"the state of the model is read after step {step}, when the CS system is ahead of the program; "
            f"expected the first or the last step{f', or one of {checkpoints}' if checkpoints else ''}: set "
            "checkpoint_steps=N, of cstorch.configure or of the DataExecutor"
        )


class LoopLeftError(StepError):
    """The state is read after a loop that the program has left where it was not on this CPU."""

    def __init__(self, turn: int, checkpoints: object) -> None:
        super().__init__(
            "the state of the model is read, but it was lost when the program left its loop after step "
            f"{turn}: the CS system was ahead of the program; leave the loop after its first or last step, "
            f"or after one of the checkpoint_steps (now {checkpoints or 'none'})"
        )


class OptimizerArgumentError(ToolkitError, ValueError):
    """An optimizer is made with a value that it cannot use; a `ValueError`, as programs expect."""


class OptimizerStateError(ToolkitError, RuntimeError):
    """A state that is not of this optimizer, or that it does not have."""


class ScheduleError(ToolkitError, ValueError):
    """A schedule of learning rates or weight decays that cannot be followed."""


class ScheduleTypeError(ToolkitError, TypeError):
    """An argument of a schedule has a type that it cannot have."""


class ScheduleFunctionError(StepError):
    """A function of a schedule needs the epoch as a Python number, which a traced step has not."""

    def __init__(self, schedule: str, function: str, reason: str) -> None:
        super().__init__(
            f"{schedule}: {function} needs the epoch as a Python number, but it is a tensor without a value "
            "while the step is recorded; write the function with torch operations alone, as 0.95**epoch, "
            f"torch.exp(-epoch) or torch.where(epoch < 10, 1.0, 0.1) ({reason})"
        )


class CheckpointError(ToolkitError):
    """A checkpoint that cannot be written or read."""
