"""The root of all errors of the toolkit, and the exit status that an error leads to.

0 is success, 1 an expected failure, 2 bad input of the caller, 3 a bug of the toolkit. A child's status
passes through the launchers unchanged.
"""

from __future__ import annotations

import traceback
from dataclasses import dataclass
from pathlib import Path

EXIT_FAILURE = 1
EXIT_USAGE = 2
EXIT_BUG = 3

PACKAGES = (
    "cerebras_pytorch",
    "cerebras_torch",
    "cgc",
    "cs_compat",
    "cs_runtime",
    "cs_stream",
    "cs_system",
    "cs_toolkit",
    "cstorch",
    "csrun",
    "estimator",
    "input_analyzer",
    "input_rules",
)
"""All top-level packages of the toolkit."""

_ROOT = Path(__file__).resolve().parent.parent


class ToolkitError(Exception):
    """An expected failure: the message is for the user, without a traceback.

    It says what was got, what was expected and what to do. `exit_code` is the exit status of a command that
    ends with the error.
    """

    exit_code = EXIT_FAILURE


class UsageError(ToolkitError):
    """A flag, an argument, a variable or a combination of them that cannot be used."""

    exit_code = EXIT_USAGE


class WriteError(ToolkitError):
    """A directory that cannot be written or is full; the message names it."""


@dataclass(frozen=True)
class ProgramFault:
    """One thing that is wrong with a user's program; what is not known or not of one operation is None.

    Attributes:
        kind: "unknown operation", "element type", "dynamic shape" or "usage".
        message: what was got and expected, a line of text.
        op: the framework's type of the operation.
        node: its name.
        shape: of its first result; None for sizes that are not known.
        dtype: of its first result.
        source: the user's line as "file:line".
        library: the line of the library that it calls, as "package/file:line".
        what_to_do: how to go on.
    """

    kind: str
    message: str
    op: str | None = None
    node: str | None = None
    shape: tuple[int | None, ...] | None = None
    dtype: str | None = None
    source: str | None = None
    library: str | None = None
    what_to_do: str | None = None


def exit_code_of(error: BaseException) -> int:
    """The exit status of a process that ends with an error: its own, 1 for the user's code, 3 for a bug."""
    code = getattr(error, "exit_code", None)
    if isinstance(code, int):
        return code
    return EXIT_BUG if _raised_by_toolkit(error) else EXIT_FAILURE


def _raised_by_toolkit(error: BaseException) -> bool:
    """Whether the line that raised is in a package of the toolkit."""
    frames = traceback.extract_tb(error.__traceback__)
    return bool(frames) and any(
        Path(frames[-1].filename).is_relative_to(_ROOT / package) for package in PACKAGES
    )
