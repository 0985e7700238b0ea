"""The user's part of a traceback: errors in an input function without the frames of the toolkit."""

from __future__ import annotations

import linecache
import re
import traceback
from itertools import zip_longest

from cs_toolkit.source_files import is_users_file, toolkit_folders

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
            is_users_file(frame.filename) for frame in one.__context__.stack
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
        own = [frame for frame in frames if is_users_file(frame["file"])]
        if own and (not best or "Current thread" in thread):
            best = own
    return "\n".join(_shown(frame) for frame in reversed(best))


def is_ours(file: str) -> bool:
    """Whether a file belongs to the toolkit."""
    return file.startswith(_OURS)


def _shown(frame: re.Match[str]) -> str:
    line = linecache.getline(frame["file"], int(frame["line"])).strip()
    place = f'  File "{frame["file"]}", line {frame["line"]}, in {frame["function"]}'
    return f"{place}\n    {line}" if line else place
