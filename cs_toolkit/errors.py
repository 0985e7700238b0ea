"""The root of all errors of the toolkit, and their exit statuses.

0 is success, 1 an expected failure, 2 invalid input of the caller, 3 a bug of the toolkit. The launchers pass
the status of a child on unchanged.
"""

from __future__ import annotations

import traceback
from collections.abc import Iterable
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

    The message states the given value, the expected one and what to do. `exit_code` is the exit status of a
    command that ends with the error.
    """

    exit_code = EXIT_FAILURE


class UsageError(ToolkitError):
    """A flag, an argument, a variable or a combination of them is invalid."""

    exit_code = EXIT_USAGE


class WriteError(ToolkitError):
    """A directory is not writable or is full; the message names it."""


@dataclass(frozen=True)
class ProgramFault:
    """One error in a user's program; fields that are unknown or do not apply are None.

    Attributes:
        kind: "unknown operation", "element type", "dynamic shape" or "usage".
        message: one line with the given and the expected value.
        op: the framework's type of the operation.
        node: name of the operation.
        shape: of its first result; None for unknown sizes.
        dtype: of its first result.
        source: the user's line as "file:line".
        library: the line of a library that it calls, as "package/file:line".
        what_to_do: advice for the user.
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


def suggestion(name: str, known: Iterable[str]) -> str:
    """Return "; did you mean 'x'?" for the known name closest to `name`, or an empty string."""
    from difflib import get_close_matches  # lazy: only errors need it

    close = get_close_matches(name, list(known), n=1)
    return f"; did you mean '{close[0]}'?" if close else ""


def exit_code_of(error: BaseException) -> int:
    """Return the exit status for an error: its own, 1 if the user's code has raised it, 3 for a bug."""
    code = getattr(error, "exit_code", None)
    if isinstance(code, int):
        return code
    frames = traceback.extract_tb(error.__traceback__)
    raised_by_toolkit = bool(frames) and any(
        Path(frames[-1].filename).is_relative_to(_ROOT / package) for package in PACKAGES
    )
    return EXIT_BUG if raised_by_toolkit else EXIT_FAILURE
