"""What can go wrong in an analysis: what was got, what was expected, what to do."""

from __future__ import annotations

from cs_toolkit.errors import EXIT_BUG, EXIT_FAILURE, ToolkitError


class InputAnalyzerError(ToolkitError):
    """An expected failure of the analyzer."""

    def __init__(self, message: str, exit_code: int = EXIT_FAILURE) -> None:
        self.exit_code = exit_code
        super().__init__(message)


class ProcessBugError(ToolkitError):
    """A bug of the toolkit in a process of the analysis, which has ended the analysis."""

    exit_code = EXIT_BUG

    def __init__(self, host: str, trace: str) -> None:
        super().__init__(
            f"bug in a process of the analysis on {host}; expected no exception here: please report it with "
            f"this traceback\n{trace}"
        )


class InputFailedError(InputAnalyzerError):
    """The user's input function raised, or cannot be used; the message is its traceback, or the reason."""


class VaryingShapesError(InputAnalyzerError):
    """Batches that differ in what the accelerator is programmed for."""

    def __init__(self, name: str, first: str, other: str, number: int) -> None:
        super().__init__(
            f"the input function yields varying shapes: '{name}' of the first batch is {first}, of batch "
            f"{number} it is {other}; expected all batches alike, as the accelerator is programmed for one "
            "shape: make all records of one type, and pad (padded_batch with padded_shapes, or a collate_fn "
            "that pads) or crop them to one size; a collate_fn that leaves records out has to put others in "
            "their place"
        )


_ALL_STEPS = "batches for all steps of a training"


class InputEndedError(InputAnalyzerError):
    """The input gave too few batches to be measured, or to train with."""

    def __init__(
        self,
        batches: int,
        samples: int,
        shard: str = "",
        fewest: int = 0,
        framework: str = "tensorflow",
    ) -> None:
        """What there was of an input, and in which shard.

        Args:
            batches: Of an epoch.
            samples: In them.
            shard: " in shard 0 of 2", or nothing.
            fewest: Batches that an epoch has to have; 0: as many as there are steps.
            framework: Of the input.
        """
        in_torch = framework == "torch"
        few = (
            "give it more records, or smaller batches (drop_last leaves out those that are not whole)"
            if in_torch
            else "add repeat(), or look why there are so few records"
        )
        expected = f"at least {fewest}, in an epoch that is read again and again" if in_torch else _ALL_STEPS
        super().__init__(
            f"the input ended after {batches} batches ({samples} samples){shard}; expected {expected}: {few}"
        )


class HangingInputError(InputAnalyzerError):
    """No batch came within the time limit."""


class MemoryLimitError(InputAnalyzerError):
    """The copies of the input function fill the memory of the node."""


class ProgramError(InputAnalyzerError):
    """The program ended by itself without handing over an input function."""
