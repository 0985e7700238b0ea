"""What can be wrong with a PyTorch program: what was got, what was expected, what to do."""

from __future__ import annotations

from cs_toolkit.errors import ToolkitError, UsageError


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


class ValueNotThereError(StepError):
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
            "would be lost; expected a buffer of the compiled model (register_buffer), or a tensor that is "
            "made inside the step"
        )


class RandomOutsideError(StepError):
    """A step draws random numbers on this CPU, which would be the same in every step."""

    def __init__(self, operation: str, line: str | None) -> None:
        super().__init__(
            f"{line or 'line unknown'}: {operation} draws on this CPU inside the step, where every step "
            "would see the same numbers; give device=tensor.device, or draw in the input function"
        )


class NoShapeError(StepError):
    """An operation whose result PyTorch cannot describe without computing it."""

    def __init__(self, operation: str, place: tuple[tuple[str, ...], str | None]) -> None:
        layer, line = place
        super().__init__(
            f"{line or 'line unknown'}: {operation}"
            f"{' in module ' + '.'.join(layer) if layer else ''} cannot be recorded: PyTorch has no rule for "
            "the shape of its result; write it with other operations"
        )


class ConfigureError(UsageError):
    """A configuration that cannot be."""


class InputError(ToolkitError):
    """An input function that cannot feed the CS system."""


class CompileCallError(UsageError):
    """`compile` with something that is no model, or for a backend that is not there."""


class ClosureError(StepError):
    """A step closure outside of a loop, or with a tensor that has no value."""


class StateNotThereError(StepError):
    """The state is read after a step at which the system does not stop."""

    def __init__(self, step: int, checkpoint_steps: int) -> None:
        every = f"every {checkpoint_steps}" if checkpoint_steps else "no further"
        super().__init__(
            f"the state of the model is read after step {step}, when the CS system is ahead of the program; "
            f"expected the first or the last step, or one of {every} steps: set "
            "configure(checkpoint_steps=N)"
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
