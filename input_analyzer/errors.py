"""Errors of an analysis, and tracebacks of the user's code without the frames of the toolkit."""

from __future__ import annotations

import linecache
import re
import traceback
from itertools import zip_longest

from cs_toolkit.errors import EXIT_BUG, EXIT_FAILURE, ToolkitError
from cs_toolkit.source_files import is_user_file, toolkit_folders


class InputAnalyzerError(ToolkitError):
    """An expected failure of the analyzer."""

    def __init__(self, message: str, exit_code: int = EXIT_FAILURE) -> None:
        self.exit_code = exit_code
        super().__init__(message)


class ProcessBugError(ToolkitError):
    """A bug of the toolkit in a process of the analysis."""

    exit_code = EXIT_BUG

    def __init__(self, host: str, trace: str) -> None:
        super().__init__(
            f"bug in a process of the analysis on {host}; expected no exception here: please report it with "
            f"this traceback\n{trace}"
        )


class InputFailedError(InputAnalyzerError):
    """The user's input function raised, or cannot be used; the message is the traceback or the reason."""


class VaryingShapesError(InputAnalyzerError):
    """Batches differ in types or shapes, for which the accelerator is programmed."""

    def __init__(self, name: str, first: str, other: str, number: int) -> None:
        super().__init__(
            f"the input function yields varying shapes: '{name}' is {first} in the first batch and {other} "
            f"in batch {number}; expected the same types and shapes in all batches, for which the "
            "accelerator is programmed: make all records of one type, and pad (padded_batch with "
            "padded_shapes, or a collate_fn that pads) or crop them to one size; a collate_fn that drops "
            "records has to replace them"
        )


class InputEndedError(InputAnalyzerError):
    """The input delivered too few batches to be measured, or to train with."""

    def __init__(
        self,
        batches: int,
        samples: int,
        shard: str = "",
        fewest: int = 0,
        framework: str = "tensorflow",
    ) -> None:
        """Describe how much the input delivered, and in which shard.

        Args:
            batches: Batches of an epoch.
            samples: Samples in them.
            shard: " in shard 0 of 2", or nothing.
            fewest: Batches that an epoch must have; 0: as many as there are steps.
            framework: Framework of the input.
        """
        in_torch = framework == "torch"
        few = (
            "give it more records, or smaller batches (drop_last omits an incomplete last batch)"
            if in_torch
            else "add repeat(), or check why there are so few records"
        )
        expected = (
            f"at least {fewest} in an epoch, which is read repeatedly"
            if in_torch
            else "batches for all steps"
        )
        super().__init__(
            f"the input ended after {batches} batches ({samples} samples){shard}; expected {expected}: {few}"
        )


class HangingInputError(InputAnalyzerError):
    """No batch arrived within the time limit."""


class MemoryLimitError(InputAnalyzerError):
    """The copies of the input function would fill the memory of the node."""


class ProgramError(InputAnalyzerError):
    """The program exited by itself without exporting an input function."""


_OURS = tuple(f"{folder}/" for folder in toolkit_folders())
_FRAME = re.compile(r'^  File "(?P<file>[^"]+)", line (?P<line>\d+) in (?P<function>.+)$')


def users_traceback(error: BaseException) -> str:
    """Format the traceback of an error and of its causes without the toolkit's own frames."""
    whole = traceback.TracebackException.from_exception(error)
    seen: set[int] = set()
    waiting: list[traceback.TracebackException | None] = [whole]
    while waiting:
        one = waiting.pop()
        if one is None or id(one) in seen:
            continue
        seen.add(id(one))
        kept = [frame for frame in one.stack if not is_ours(frame.filename)]
        one.stack = traceback.StackSummary.from_list(kept)
        if one.__context__ is not None and not any(
            is_user_file(frame.filename) for frame in one.__context__.stack
        ):
            one.__context__ = None  # the same error, raised again by a framework
        waiting += [one.__cause__, one.__context__]
    text = _FAILED_OPERATION.sub(r" (operation \1)", "".join(whole.format()))
    for noise in _READING_OPERATION:
        text = noise.sub("", text)
    return strip_packages(text.rstrip())


def strip_packages(text: str) -> str:
    """Remove frames of installed packages from the text of an error in a Python function of tf.data."""
    # Each frame of the traceback in it is a line with its file, followed by lines with more indentation.
    lines: list[str] = []
    dropping = False
    for line in text.splitlines():
        if line.startswith('  File "'):
            file = line.split('"')[1]
            dropping = "site-packages/" in file or is_ours(file)
        elif not line.startswith("    "):
            dropping = dropping and not line.strip()
        if not dropping:
            lines.append(line)
    return "\n".join(
        line
        for line, after in zip_longest(lines, lines[1:])
        # Without the headers of tracebacks that have no frame left.
        if line != "Traceback (most recent call last):" or (after or "").startswith("  ")
    )


def lost_a_worker(error: BaseException) -> bool:
    """Return True if the queue of a torch DataLoader failed, as it does when a worker process dies."""
    files = [frame.filename for frame in traceback.extract_tb(error.__traceback__)]
    return "/multiprocessing/" in "".join(files[-1:]) and any("/torch/utils/data/" in file for file in files)


# TensorFlow describes the operation that failed, which is kept, and its own operation that read the dataset.
_FAILED_OPERATION = re.compile(r"\n\t \[\[\{\{node (?!IteratorGetNext)([^}]*)\}\}\]\]")
_READING_OPERATION = (
    re.compile(r"Graph execution error:\s*"),
    re.compile(
        r"Detected at node '?IteratorGetNext.*?^Node: '?IteratorGetNext'?\n", re.DOTALL | re.MULTILINE
    ),
    re.compile(r"\n+Original stack trace for '?IteratorGetNext'?:\n(?: .*\n?)*"),
    re.compile(r"\{\{function_node __wrapped__IteratorGetNext[^}]*\}\} ?"),
    re.compile(r"\n\t \[\[[^]]*\]\]"),
    re.compile(r" ?\[Op:IteratorGetNext\] name: ?"),
)


def users_stack(dump: str) -> str:
    """Return the frames of the user's code in a dump of all threads by faulthandler; "" if there are none.

    The dump has the innermost frame first, the result the outermost, as a traceback does.
    """
    best: list[re.Match[str]] = []
    for thread in re.split(r"\n(?=(?:Current thread|Thread) )", dump):
        frames = [match for line in thread.splitlines() if (match := _FRAME.match(line))]
        own = [frame for frame in frames if is_user_file(frame["file"])]
        if own and (not best or "Current thread" in thread):
            best = own
    lines = []
    for frame in reversed(best):
        file, number = frame["file"], int(frame["line"])
        lines.append(f'  File "{file}", line {number}, in {frame["function"]}')
        if source := linecache.getline(file, number).strip():
            lines.append(f"    {source}")
    return "\n".join(lines)


def is_ours(file: str) -> bool:
    """Return True if a file belongs to the toolkit."""
    return file.startswith(_OURS)
