"""What can go wrong in an analysis: what was got, what was expected, what to do."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


class InputAnalyzerError(Exception):
    """An expected failure of the analyzer."""

    exit_code = 1


class WrongTypeError(InputAnalyzerError):
    """The input function returned something that cannot be analyzed."""

    exit_code = 2

    def __init__(self, got: Any) -> None:
        super().__init__(
            f"the input function returned {type(got).__name__}, expected a tf.data.Dataset or a "
            "torch.utils.data.DataLoader; return the dataset itself, not its iterator or its tensors"
        )


class InputFailedError(InputAnalyzerError):
    """The user's input function raised, or cannot be used; the message is its traceback, or the reason."""

    def __init__(self, message: str, exit_code: int = 1) -> None:
        self.exit_code = exit_code
        super().__init__(message)


class ComponentError(InputAnalyzerError):
    """Something in a batch cannot be streamed."""

    exit_code = 2

    def __init__(self, name: str, got: str, what_to_do: str) -> None:
        super().__init__(
            f"component '{name}' of the input is {got}, expected a dense tensor of numbers; {what_to_do}"
        )


class VaryingShapesError(InputAnalyzerError):
    """Batches that differ in what the accelerator is programmed for."""

    exit_code = 1

    def __init__(self, name: str, first: str, other: str, number: int) -> None:
        super().__init__(
            f"the input function yields varying shapes: '{name}' of the first batch is {first}, of batch "
            f"{number} it is {other}; expected all batches alike, as the accelerator is programmed for one "
            "shape: pad (padded_batch with padded_shapes, or a collate_fn that pads) or crop to a fixed size"
        )


class InputEndedError(InputAnalyzerError):
    """The input gave too few batches to be measured, or to train with."""

    exit_code = 1

    def __init__(self, batches: int, samples: int, shard: str = "", mends: Sequence[str] = ()) -> None:
        """`mends` are findings that --apply has mended, of which the worker may have so few records."""
        few = (
            f"--apply mends {' and '.join(mends)} here, which leaves this worker so few: write the shard "
            "into the input function, or run without --apply"
            if mends
            else "add repeat() (an endless sampler in torch), or look why there are so few records"
        )
        super().__init__(
            f"the input ended after {batches} batches ({samples} samples){shard}; expected batches for all "
            f"steps of a training: {few}"
        )


class HangingInputError(InputAnalyzerError):
    """No batch came within the time limit."""

    exit_code = 1


class MemoryLimitError(InputAnalyzerError):
    """The copies of the input function fill the memory of the node."""

    exit_code = 1


class ProgramError(InputAnalyzerError):
    """The program ended by itself without handing over an input function."""

    def __init__(self, message: str, exit_code: int = 1) -> None:
        self.exit_code = exit_code
        super().__init__(message)


class UsageError(InputAnalyzerError):
    """A flag or an argument that cannot be used."""

    exit_code = 2
