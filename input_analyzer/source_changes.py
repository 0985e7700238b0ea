"""Changes of the user's source that findings recommend, as a unified diff. Pure but for reading the files."""

from __future__ import annotations

import ast
import difflib
import os
import shutil
import subprocess
import sys
import tokenize
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from io import StringIO
from pathlib import Path

from cs_toolkit.errors import UsageError
from cs_toolkit.files import replace_file
from csrun.console import STDERR, STDOUT, say, write_text
from csrun.errors import CsrunError
from input_rules.findings import Finding
from input_rules.rules.batching import DROP_ARGUMENTS

_AUTOTUNE = "tf.data.AUTOTUNE"
LOADER = "DataLoader"
_LOADER_ARGUMENTS = (
    *("dataset", "batch_size", "shuffle", "sampler", "batch_sampler", "num_workers", "collate_fn"),
    *("pin_memory", "drop_last", "timeout", "worker_init_fn", "multiprocessing_context", "generator"),
)
"""Of torch.utils.data.DataLoader, in the order in which they may be given without their names."""
_NO_NEWLINE = "\\ No newline at end of file\n"


@dataclass(frozen=True)
class Edit:
    """Text to put in the place of a part of a source.

    Attributes:
        start: Line (from 1) and column (from 0, in bytes) where the part begins.
        end: Where it ends.
        text: What takes its place.
    """

    start: tuple[int, int]
    end: tuple[int, int]
    text: str


@dataclass(frozen=True)
class Changed:
    """A file of the user's, as it is and as findings would have it."""

    name: str
    before: str
    after: str

    @property
    def diff(self) -> str:
        """The difference as a unified diff, for `patch -p1`; of a file elsewhere in the folder /."""
        shown = self.name.lstrip("/")
        lines = difflib.unified_diff(_lines(self.before), _lines(self.after), f"a/{shown}", f"b/{shown}")
        return "".join(line if line.endswith("\n") else f"{line}\n{_NO_NEWLINE}" for line in lines)


@dataclass(frozen=True)
class Changes:
    """What findings change in the source.

    Attributes:
        files: All files that are changed.
        left: The findings that change nothing, with the reasons, sentences without their full stops.
    """

    files: tuple[Changed, ...]
    left: tuple[tuple[Finding, str], ...]

    @property
    def diff(self) -> str:
        """A unified diff of all files; empty where none is changed."""
        return "".join(file.diff for file in self.files)


def changes(findings: Sequence[Finding], read: Callable[[Path], str] | None = None) -> Changes:
    """What findings change in the files that they speak of.

    Args:
        findings: Their lines say where.
        read: Gives the source of a file; an OSError leaves the file as it is.
    """
    read = read or (lambda path: path.read_bytes().decode())  # line ends as they are
    by_file: dict[str, list[Finding]] = {}
    left: list[tuple[Finding, str]] = []
    for finding in findings:
        if finding.by_hand is not None:
            left.append((finding, finding.by_hand))
        elif finding.source is None:
            left.append((finding, "it is not made on a line of yours"))
        else:
            by_file.setdefault(finding.source.rpartition(":")[0], []).append(finding)
    files = [_changed(name, found, read, left) for name, found in by_file.items()]
    return Changes(tuple(file for file in files if file is not None), tuple(left))


def _changed(
    name: str, findings: Sequence[Finding], read: Callable[[Path], str], left: list[tuple[Finding, str]]
) -> Changed | None:
    try:
        source = read(Path(name))
        tree = ast.parse(source)
    except (OSError, SyntaxError, ValueError):
        left += ((finding, "its file cannot be read as Python") for finding in findings)
        return None
    edits: dict[Edit, None] = {}
    # A call gets prefetch() behind repeat(), whichever was found first.
    for finding in sorted(findings, key=lambda finding: finding.id == "prefetch-missing"):
        found = _edits(finding, tree, source)
        if isinstance(found, str):
            left.append((finding, found))
        else:
            edits.update(dict.fromkeys(found))
    return Changed(name, source, _edited(source, list(edits))) if edits else None


def _edits(finding: Finding, tree: ast.Module, source: str) -> list[Edit] | str:
    """What a finding changes, or why that is left to the user."""
    line = int((finding.source or "").rpartition(":")[2])
    calls = [call for call in _calls(tree, finding.op) if _is_on(call, line)]
    if finding.op == LOADER:
        found = list(_of_loader(calls[0], finding, tree, source)) if len(calls) == 1 else []
        return found or "no argument of one call is it for certain"
    change = _CHANGES.get(finding.id)
    if change is None:
        return "it is more than an argument of one call"
    edits = [edit for call in calls if (edit := change(call, finding, source)) is not None]
    if any(_AUTOTUNE in edit.text for edit in edits) and not _knows_tf(tree):
        return "the file does not know TensorFlow as tf"
    # Several calls of one name on a line: only where one alone lacks what is missing is it plain which.
    if len(edits) == 1:
        return edits
    if len(calls) > 1:
        return f"there are several calls of {finding.op}() on the line"
    return "its arguments do not tell what to write" if calls else "its call is not on that line"


def _calls(tree: ast.Module, name: str) -> Iterator[ast.Call]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and _name_of(node.func) == name:
            yield node


def _name_of(function: ast.expr) -> str | None:
    """The name that is called: of a method, or by itself as torch's DataLoader often is."""
    if isinstance(function, ast.Attribute):
        return function.attr
    return function.id if isinstance(function, ast.Name) and function.id == LOADER else None


def _is_on(call: ast.Call, line: int) -> bool:
    """Whether a call is made on a line: that of its method's name, or one of its arguments."""
    first = call.func.end_lineno or call.lineno
    return first <= line <= (call.end_lineno or first)


def _of_loader(call: ast.Call, finding: Finding, tree: ast.Module, source: str) -> Iterator[Edit]:
    """The arguments of a DataLoader that a finding recommends, each as it is written there."""
    wanted = _recommended_arguments(finding, tree)
    given = {keyword.arg: keyword.value for keyword in call.keywords}
    if None in given or any(isinstance(value, ast.Starred) for value in call.args):
        return  # **settings may have it
    given |= dict(zip(_LOADER_ARGUMENTS, call.args, strict=False))
    missing = []
    for name, value in wanted.items():
        if name not in given:
            missing.append(f"{name}={value}")
        elif ast.unparse(given[name]) != value:
            yield _replace(given[name], value)
    appended = _append(call, ", ".join(missing), source) if missing else None
    if appended is not None:
        yield appended


def _recommended_arguments(finding: Finding, tree: ast.Module) -> dict[str, str]:
    """Of `DataLoader(..., num_workers=2)` the arguments; none where that is not all that there is to do."""
    try:
        expression = ast.parse(finding.recommended, mode="eval").body
    except SyntaxError:
        return {}
    if not isinstance(expression, ast.Call) or _name_of(expression.func) != LOADER:
        return {}
    values = {str(one.arg): ast.unparse(one.value) for one in expression.keywords}
    imports_torch = any(
        isinstance(node, ast.Import) and any(name.name == "torch" and not name.asname for name in node.names)
        for node in ast.walk(tree)
    )
    return {name: value for name, value in values.items() if imports_torch or "torch." not in value}


def _knows_tf(tree: ast.Module) -> bool:
    """Whether TensorFlow is `tf` there: it is imported so, or used so, as behind `from x import *`."""
    return any(
        any(one.name == "tensorflow" and one.asname == "tf" for one in node.names)
        if isinstance(node, ast.Import)
        else isinstance(node, ast.Attribute) and ast.unparse(node) == "tf.data"
        for node in ast.walk(tree)
    )


def _keyword(name: str, otherwise: str) -> Callable[[ast.Call, Finding, str], Edit | None]:
    """A change that sets an argument given by its name, or adds it.

    Its value is the number of a finding, else what is given here.
    """

    def change(call: ast.Call, finding: Finding, source: str) -> Edit | None:
        if finding.op == "with_options":
            return None  # what it is given was set elsewhere
        value = otherwise if finding.value is None else str(finding.value)
        for keyword in call.keywords:
            if keyword.arg == name:
                present = ast.get_source_segment(source, keyword.value)
                return None if present == value else _replace(keyword.value, value)
            if keyword.arg is None:
                return None  # **settings may have it
        return _append(call, f"{name}={value}", source)

    return change


def _drop_remainder(call: ast.Call, finding: Finding, source: str) -> Edit | None:
    """A change that leaves out a smaller last batch, of calls that have an argument for that."""
    name = DROP_ARGUMENTS.get(finding.op)
    return _keyword(name, "True")(call, finding, source) if name else None


def _first_argument(
    value: Callable[[Finding], str | None],
) -> Callable[[ast.Call, Finding, str], Edit | None]:
    """A change that replaces the first argument."""

    def change(call: ast.Call, finding: Finding, source: str) -> Edit | None:
        text = value(finding)
        return _replace(call.args[0], text) if call.args and text is not None else None

    return change


def _behind(text: str) -> Callable[[ast.Call, Finding, str], Edit | None]:
    """A change that appends a call."""

    def change(call: ast.Call, finding: Finding, source: str) -> Edit | None:
        end = (call.end_lineno or call.lineno, call.end_col_offset or 0)
        return Edit(end, end, text)

    return change


def _repeat(call: ast.Call, finding: Finding, source: str) -> Edit | None:
    """A change that repeats what a call batches, so that epochs share a batch; else what it delivers."""
    if finding.op == "make_csv_dataset":
        return _keyword("num_epochs", "None")(call, finding, source)
    read = call.func.value if isinstance(call.func, ast.Attribute) else None
    if finding.op not in _BATCHES or read is None or ast.unparse(read).endswith("Dataset"):
        return _behind(".repeat()")(call, finding, source)
    end = (read.end_lineno or read.lineno, read.end_col_offset or 0)
    # The tree knows nothing of parentheses around what the method is of.
    dot = (call.func.end_lineno or 0, call.func.end_col_offset or 0)
    end = max([end, *(place for place in _closing_parentheses(source) if end < place <= dot)])
    return Edit(end, end, ".repeat()")


_BATCHES = ("batch", "padded_batch")


def _replace(node: ast.expr, text: str) -> Edit:
    end = (node.end_lineno or node.lineno, node.end_col_offset or 0)
    return Edit((node.lineno, node.col_offset), end, text)


def _append(call: ast.Call, text: str, source: str) -> Edit | None:
    """An argument behind the last one; None where that is a generator without parentheses of its own."""
    given: list[ast.expr] = [*call.args, *(keyword.value for keyword in call.keywords)]
    close = (call.end_lineno or call.lineno, (call.end_col_offset or 1) - 1)
    if not given:
        return Edit(close, close, text)
    end = max((node.end_lineno or node.lineno, node.end_col_offset or 0) for node in given)
    if end > close:
        return None
    # The tree knows nothing of parentheses around an argument.
    end = max([end, *(place for place in _closing_parentheses(source) if end < place <= close)])
    return Edit(end, end, f", {text}")


def _closing_parentheses(source: str) -> Iterator[tuple[int, int]]:
    """Line, and column in bytes, behind each of them."""
    for token in tokenize.generate_tokens(StringIO(source).readline):
        if token.type == tokenize.OP and token.string == ")":
            line, column = token.end
            yield line, len(token.line[:column].encode())


def _lines(source: str) -> list[str]:
    """Lines as Python counts them: a form feed ends none."""
    return StringIO(source).readlines()


def _edited(source: str, edits: Sequence[Edit]) -> str:
    lines = [line.encode() for line in _lines(source)]
    # From the end on; of several at one place the last one first, so that they stand in their order.
    for _, edit in sorted(enumerate(edits), key=lambda item: (item[1].start, item[0]), reverse=True):
        (first, begin), (last, end) = edit.start, edit.end
        head, tail = lines[first - 1][:begin], lines[last - 1][end:]
        lines[first - 1 : last] = [head + edit.text.encode() + tail]
    return b"".join(lines).decode()


_CHANGES: dict[str, Callable[[ast.Call, Finding, str], Edit | None]] = {
    "drop-remainder-missing": _drop_remainder,
    "parallel-calls-missing": _keyword("num_parallel_calls", _AUTOTUNE),
    "parallel-calls-fixed": _keyword("num_parallel_calls", _AUTOTUNE),
    "cycle-length-fixed": _keyword("cycle_length", _AUTOTUNE),
    "parallel-reads-missing": _keyword("num_parallel_reads", _AUTOTUNE),
    "order-not-deterministic": _keyword("deterministic", "True"),
    "prefetch-empty": _first_argument(lambda finding: _AUTOTUNE),
    "shuffle-buffer-small": _first_argument(lambda finding: str(finding.value) if finding.value else None),
    "prefetch-missing": _behind(f".prefetch({_AUTOTUNE})"),
    "repeat-missing": _repeat,
}


def show(program: str, findings: Sequence[Finding]) -> tuple[Changed, ...]:
    """Prints the diff of what findings change, and on stderr what is not in it and why; the changed files."""
    found = changes(findings)
    for finding, reason in found.left:
        place = f" at {finding.source}" if finding.source else ""
        say(program, f"not in the diff: {finding.id}{place}, {finding.op}(): {reason}")
    if found.files:
        write_text(STDOUT, found.diff)
    else:
        say(program, "nothing in the source can be changed mechanically")
    return found.files


def check_answerable(*, yes: bool) -> None:
    """Whether somebody can be asked.

    Raises:
        UsageError: there is no terminal, and no --yes.
    """
    if not yes and not (sys.stdin.isatty() and os.isatty(STDERR)):
        raise UsageError(
            "--apply without a terminal: nobody can be asked whether the diff is to be written; expected "
            "--yes, or --apply-dry-run to see it"
        )


def write(program: str, files: Sequence[Changed], *, yes: bool, allow_dirty: bool) -> None:
    """Writes changed files, each in one step.

    Args:
        program: Our name.
        files: As `show` has printed them.
        yes: Without a question.
        allow_dirty: Also files with changes that are not committed to git.

    Raises:
        UsageError: a file has such changes.
        CsrunError: a file has changed since it was read, or cannot be written.
    """
    dirty = [] if allow_dirty else [file.name for file in files if _is_dirty(Path(file.name))]
    if dirty:
        raise UsageError(
            f"--apply: {', '.join(dirty)}: there are changes that are not committed to git; expected a file "
            "that git can bring back: commit or stash them, or give --allow-dirty"
        )
    if not files or not (yes or _agreed(len(files))):
        return
    for file in files:
        _write_file(file)
        say(program, f"changed: {file.name}")


def _agreed(count: int) -> bool:
    what = "this file" if count == 1 else f"these {count} files"
    write_text(STDERR, f"Write the changes to {what}? [y/N] ")
    return sys.stdin.readline().strip().lower() in ("y", "yes")


def _is_dirty(file: Path) -> bool:
    """Whether git knows of changes that are not committed; no for a file outside of a repository."""
    git = shutil.which("git")
    if git is None:
        return False
    place = file.resolve()
    words = (git, "-C", str(place.parent), "status", "--porcelain", "--", place.name)
    told = subprocess.run(words, capture_output=True, text=True, check=False)
    return told.returncode == 0 and bool(told.stdout.strip())


def _write_file(file: Changed) -> None:
    place = Path(file.name).resolve()  # a link stays a link
    try:
        if place.read_bytes().decode() != file.before:
            raise CsrunError(f"{file.name} has changed since it was read; expected it unchanged: run again")
        mode = place.stat().st_mode
        replace_file(place, file.after)
        place.chmod(mode)
    except OSError as error:
        raise CsrunError(
            f"{file.name} cannot be written: {error.strerror}; expected a file that we may write"
        ) from error
