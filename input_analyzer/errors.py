"""What can go wrong in an analysis: what was got, what was expected, what to do."""

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


_OURS = tuple(f"{folder}/" for folder in toolkit_folders())
_FRAME = re.compile(r'^  File "(?P<file>[^"]+)", line (?P<line>\d+) in (?P<function>.+)$')


def users_traceback(error: BaseException) -> str:
    """The traceback of an error and of its causes without the toolkit's own frames."""
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
            one.__context__ = None  # the same error as a framework has seen it on its way
        waiting += [one.__cause__, one.__context__]
    return _without_framework(_without_operations("".join(whole.format())).rstrip())


def lost_a_worker(error: BaseException) -> bool:
    """Whether the queue of a torch DataLoader failed, as it may when a worker process is gone."""
    files = [frame.filename for frame in traceback.extract_tb(error.__traceback__)]
    return "/multiprocessing/" in "".join(files[-1:]) and any("/torch/utils/data/" in file for file in files)


def _without_operations(text: str) -> str:
    """Without what TensorFlow says of its own operation that reads a dataset; with the one that failed."""
    text = _FAILED.sub(r" (operation \1)", text)
    for noise in _NOISE:
        text = noise.sub("", text)
    return text


_FAILED = re.compile(r"\n\t \[\[\{\{node (?!IteratorGetNext)([^}]*)\}\}\]\]")
_NOISE = (
    re.compile(r"Graph execution error:\s*"),
    re.compile(
        r"Detected at node '?IteratorGetNext.*?^Node: '?IteratorGetNext'?\n", re.DOTALL | re.MULTILINE
    ),
    re.compile(r"\n+Original stack trace for '?IteratorGetNext'?:\n(?: .*\n?)*"),
    re.compile(r"\{\{function_node __wrapped__IteratorGetNext[^}]*\}\} ?"),
    re.compile(r"\n\t \[\[[^]]*\]\]"),
    re.compile(r" ?\[Op:IteratorGetNext\] name: ?"),
)


def _without_framework(text: str) -> str:
    """Without the frames of installed packages, which an error in a Python function of tf.data brings along.

    The message of such an error holds a traceback as text: of a frame a line with its file, then lines that
    are indented further.
    """
    kept: list[str] = []
    dropping = False
    for line in text.splitlines():
        if line.startswith('  File "'):
            file = line.split('"')[1]
            dropping = "site-packages/" in file or is_ours(file)
        elif not line.startswith("    "):
            dropping = dropping and not line.strip()
        if not dropping:
            kept.append(line)
    return "\n".join(line for line, after in zip_longest(kept, kept[1:]) if not _is_empty(line, after))


def _is_empty(line: str, after: str | None) -> bool:
    """Whether a line begins a traceback of which no frame is left."""
    return line == "Traceback (most recent call last):" and not (after or "").startswith("  ")


def users_stack(dump: str) -> str:
    """Where the user's code stands, of what faulthandler has written of all threads; "" if nowhere.

    Frames come innermost first there, and outermost first here, as in a traceback.
    """
    best: list[re.Match[str]] = []
    for thread in re.split(r"\n(?=(?:Current thread|Thread) )", dump):
        frames = [match for line in thread.splitlines() if (match := _FRAME.match(line))]
        own = [frame for frame in frames if is_user_file(frame["file"])]
        if own and (not best or "Current thread" in thread):
            best = own
    return "\n".join(_format_frame(frame) for frame in reversed(best))


def is_ours(file: str) -> bool:
    """Whether a file belongs to the toolkit."""
    return file.startswith(_OURS)


def _format_frame(frame: re.Match[str]) -> str:
    line = linecache.getline(frame["file"], int(frame["line"])).strip()
    place = f'  File "{frame["file"]}", line {frame["line"]}, in {frame["function"]}'
    return f"{place}\n    {line}" if line else place
