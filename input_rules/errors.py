"""Errors about an input function; messages state the actual and the expected value, and advice."""

from __future__ import annotations

from typing import Any

from cs_toolkit.errors import EXIT_USAGE, ToolkitError


class WrongTypeError(ToolkitError):
    """The input function returned an object that cannot be analyzed."""

    exit_code = EXIT_USAGE

    def __init__(self, got: Any) -> None:
        super().__init__(
            f"the input function returned {type(got).__name__}, expected a tf.data.Dataset or a "
            "torch.utils.data.DataLoader; return the dataset itself, not its iterator or its tensors"
        )


class ComponentError(ToolkitError):
    """A component of a batch cannot be streamed."""

    exit_code = EXIT_USAGE

    def __init__(self, name: str, got: str, what_to_do: str) -> None:
        super().__init__(
            f"component '{name}' of the input is {got}, expected a dense tensor of numbers; {what_to_do}"
        )
