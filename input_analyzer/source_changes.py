"""Change the user's source as findings recommend: plan the edits, show the diff, write the files."""

from __future__ import annotations

import ast
import difflib
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from cs_toolkit.errors import UsageError
from cs_toolkit.files import replace_file
from csrun.console import STDERR, STDOUT, say, write_text
from csrun.errors import CsrunError
from input_analyzer.batch_forms import FORMS, NotMechanicalError, plan_batch_form
from input_analyzer.source_edits import (
    Edit,
    append_argument,
    apply_edits,
    end_of,
    end_of_object,
    replace_node,
    split_lines,
)
from input_rules.findings import Finding
from input_rules.rules.batching import DROP_ARGUMENTS

_AUTOTUNE = "tf.data.AUTOTUNE"
LOADER = "DataLoader"
# Positional arguments of torch.utils.data.DataLoader, in order.
_LOADER_ARGUMENTS = (
    *("dataset", "batch_size", "shuffle", "sampler", "batch_sampler", "num_workers", "collate_fn"),
    *("pin_memory", "drop_last", "timeout", "worker_init_fn", "multiprocessing_context", "generator"),
)
_NO_NEWLINE = "\\ No newline at end of file\n"


@dataclass(frozen=True)
class ChangedFile:
    """A file of the user's before and after the change."""

    name: str
    before: str
    after: str

    @property
    def diff(self) -> str:
        """The unified diff for `patch -p1`; for a file elsewhere, relative to the root folder."""
        shown = self.name.lstrip("/")
        lines = difflib.unified_diff(
            split_lines(self.before), split_lines(self.after), f"a/{shown}", f"b/{shown}"
        )
        return "".join(line if line.endswith("\n") else f"{line}\n{_NO_NEWLINE}" for line in lines)


@dataclass(frozen=True)
class Changes:
    """The changes that findings recommend.

    Attributes:
        files: All changed files.
        unchanged: Findings that change nothing, with the reasons.
    """

    files: tuple[ChangedFile, ...]
    unchanged: tuple[tuple[Finding, str], ...]

    @property
    def diff(self) -> str:
        """The unified diff of all files; empty if none is changed."""
        return "".join(file.diff for file in self.files)


def plan_changes(findings: Sequence[Finding], read: Callable[[Path], str] | None = None) -> Changes:
    """Plan the changes that findings recommend in the files that they refer to.

    Args:
        findings: Their lines say where.
        read: Returns the source of a file; an OSError leaves the file as it is.
    """
    read = read or (lambda path: path.read_bytes().decode())  # line ends as they are
    by_file: dict[str, list[Finding]] = {}
    unchanged: list[tuple[Finding, str]] = []
    for finding in findings:
        if finding.by_hand is not None:
            unchanged.append((finding, finding.by_hand))
        elif finding.source is None:
            unchanged.append((finding, "no line of your source creates it"))
        else:
            by_file.setdefault(finding.source.rpartition(":")[0], []).append(finding)
    files = [_change_file(name, found, read, unchanged) for name, found in by_file.items()]
    return Changes(tuple(file for file in files if file is not None), tuple(unchanged))


def add_diffs(findings: Sequence[Finding]) -> tuple[Finding, ...]:
    """Add the change of the source to each finding whose change is mechanical."""
    return tuple(replace(one, diff=plan_changes([one]).diff or None) for one in findings)


def _change_file(
    name: str, findings: Sequence[Finding], read: Callable[[Path], str], unchanged: list[tuple[Finding, str]]
) -> ChangedFile | None:
    try:
        source = read(Path(name))
        tree = ast.parse(source)
    except (OSError, SyntaxError, ValueError):
        unchanged += ((finding, "its file cannot be read as Python") for finding in findings)
        return None
    edits: dict[Edit, None] = {}
    moving = [finding for finding in findings if finding.id in FORMS]
    # prefetch() is appended after repeat(), whichever was found first.
    for finding in sorted(findings, key=lambda finding: finding.id == "prefetch-missing"):
        if finding in moving:
            continue
        found = _plan_edits(finding, tree, source)
        if isinstance(found, str):
            unchanged.append((finding, found))
        else:
            edits.update(dict.fromkeys(found))
    # These edits add no lines, so calls that are moved after that are still on the lines of their findings.
    after = apply_edits(source, edits)
    edits = {}
    for finding in moving:
        try:
            planned = plan_batch_form(finding, finding.form or FORMS[finding.id][0], ast.parse(after), after)
        except NotMechanicalError as error:
            unchanged.append((finding, str(error)))
        else:
            edits.update(dict.fromkeys(planned))
    after = apply_edits(after, edits)
    return None if after == source else ChangedFile(name, source, after)


def _plan_edits(finding: Finding, tree: ast.Module, source: str) -> list[Edit] | str:
    """Return the edits of a finding, or the reason why the change is left to the user."""
    line = int((finding.source or "").rpartition(":")[2])
    calls = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and _name_of(node.func) == finding.op:
            # The method name or an argument is on the line; the object of the method may begin above it.
            first = node.func.end_lineno or node.lineno
            if first <= line <= (node.end_lineno or first):
                calls.append(node)
    if finding.op == LOADER:
        found = list(_loader_edits(calls[0], finding, tree, source)) if len(calls) == 1 else []
        return found or "it is not certain which argument of which call to change"
    change = _CHANGES.get(finding.id)
    if change is None:
        return "it takes more than changing an argument of one call"
    edits = [edit for call in calls if (edit := change(call, finding, source)) is not None]
    names_tensorflow = any(
        any(one.name == "tensorflow" and one.asname == "tf" for one in node.names)
        if isinstance(node, ast.Import)
        # The name may come from `from x import *`.
        else isinstance(node, ast.Attribute) and ast.unparse(node) == "tf.data"
        for node in ast.walk(tree)
    )
    if any(_AUTOTUNE in edit.text for edit in edits) and not names_tensorflow:
        return "the file does not import TensorFlow as tf"
    # Of several calls of the same name on a line, the right one is known only if a single one needs the edit.
    if len(edits) == 1:
        return edits
    if len(calls) > 1:
        return f"there are several calls of {finding.op}() on the line"
    return "its arguments do not determine the change" if calls else "its call is not on that line"


def _name_of(function: ast.expr) -> str | None:
    """Return the called name: of a method, or of torch's DataLoader, which is often called directly."""
    if isinstance(function, ast.Attribute):
        return function.attr
    return function.id if isinstance(function, ast.Name) and function.id == LOADER else None


def _loader_edits(call: ast.Call, finding: Finding, tree: ast.Module, source: str) -> Iterator[Edit]:
    """Yield the edits of the DataLoader arguments that a finding recommends."""
    try:
        recommended = ast.parse(finding.recommended, mode="eval").body
    except SyntaxError:
        return  # it takes more than other arguments
    if not isinstance(recommended, ast.Call) or _name_of(recommended.func) != LOADER:
        return
    wanted = {str(one.arg): ast.unparse(one.value) for one in recommended.keywords}
    imports_torch = any(
        isinstance(node, ast.Import) and any(name.name == "torch" and not name.asname for name in node.names)
        for node in ast.walk(tree)
    )
    given = {keyword.arg: keyword.value for keyword in call.keywords}
    if None in given or any(isinstance(value, ast.Starred) for value in call.args):
        return  # **settings may contain it
    given |= dict(zip(_LOADER_ARGUMENTS, call.args, strict=False))
    missing = []
    for name, value in wanted.items():
        if "torch." in value and not imports_torch:
            continue
        if name not in given:
            missing.append(f"{name}={value}")
        elif ast.unparse(given[name]) != value:
            yield replace_node(given[name], value)
    appended = append_argument(call, ", ".join(missing), source) if missing else None
    if appended is not None:
        yield appended


def _set_keyword(name: str, otherwise: str) -> Callable[[ast.Call, Finding, str], Edit | None]:
    """Return a change that sets a keyword argument, or adds it.

    Its value is the number of a finding, or `otherwise`.
    """

    def change(call: ast.Call, finding: Finding, source: str) -> Edit | None:
        if finding.op == "with_options":
            return None  # its options are set elsewhere
        value = otherwise if finding.value is None else str(finding.value)
        for keyword in call.keywords:
            if keyword.arg == name:
                present = ast.get_source_segment(source, keyword.value)
                return None if present == value else replace_node(keyword.value, value)
            if keyword.arg is None:
                return None  # **settings may contain it
        return append_argument(call, f"{name}={value}", source)

    return change


def _drop_remainder(call: ast.Call, finding: Finding, source: str) -> Edit | None:
    """Drop a smaller last batch, for calls that have an argument for that."""
    name = DROP_ARGUMENTS.get(finding.op)
    return _set_keyword(name, "True")(call, finding, source) if name else None


def _set_first_argument(
    value: Callable[[Finding], str | None],
) -> Callable[[ast.Call, Finding, str], Edit | None]:
    """Return a change that replaces the first argument."""

    def change(call: ast.Call, finding: Finding, source: str) -> Edit | None:
        text = value(finding)
        return replace_node(call.args[0], text) if call.args and text is not None else None

    return change


def _append_call(text: str) -> Callable[[ast.Call, Finding, str], Edit | None]:
    """Return a change that appends a call."""

    def change(call: ast.Call, finding: Finding, source: str) -> Edit | None:
        return Edit(end_of(call), end_of(call), text)

    return change


def _add_repeat(call: ast.Call, finding: Finding, source: str) -> Edit | None:
    """Repeat the input of a batch, so that epochs share batches; or else the result of the call."""
    if finding.op == "make_csv_dataset":
        return _set_keyword("num_epochs", "None")(call, finding, source)
    read = call.func.value if isinstance(call.func, ast.Attribute) else None
    if finding.op not in _BATCHES or read is None or ast.unparse(read).endswith("Dataset"):
        return _append_call(".repeat()")(call, finding, source)
    end = end_of_object(call, source)
    return None if end is None else Edit(end, end, ".repeat()")


_BATCHES = ("batch", "padded_batch")


_CHANGES: dict[str, Callable[[ast.Call, Finding, str], Edit | None]] = {
    "drop-remainder-missing": _drop_remainder,
    "parallel-calls-missing": _set_keyword("num_parallel_calls", _AUTOTUNE),
    "parallel-calls-fixed": _set_keyword("num_parallel_calls", _AUTOTUNE),
    "cycle-length-fixed": _set_keyword("cycle_length", _AUTOTUNE),
    "parallel-reads-missing": _set_keyword("num_parallel_reads", _AUTOTUNE),
    "order-not-deterministic": _set_keyword("deterministic", "True"),
    "prefetch-empty": _set_first_argument(lambda finding: _AUTOTUNE),
    "shuffle-buffer-small": _set_first_argument(
        lambda finding: str(finding.value) if finding.value else None
    ),
    "prefetch-missing": _append_call(f".prefetch({_AUTOTUNE})"),
    "repeat-missing": _add_repeat,
}


def show_diff(program: str, findings: Sequence[Finding]) -> tuple[ChangedFile, ...]:
    """Print the diff, and on stderr the findings that are not in it and why; return the changed files."""
    found = plan_changes(findings)
    for finding, reason in found.unchanged:
        place = f" at {finding.source}" if finding.source else ""
        say(program, f"not in the diff: {finding.id}{place}, {finding.op}(): {reason}")
    if found.files:
        write_text(STDOUT, found.diff)
    else:
        say(program, "no change of the source is mechanical")
    return found.files


def check_can_confirm(*, yes: bool) -> None:
    """Check that somebody can confirm the changes.

    Raises:
        UsageError: there is no terminal, and no --yes.
    """
    if not yes and not (sys.stdin.isatty() and os.isatty(STDERR)):
        raise UsageError(
            "--apply without a terminal: nobody can confirm the changes; expected --yes, or "
            "--apply-dry-run to only see the diff"
        )


def write_changes(program: str, files: Sequence[ChangedFile], *, yes: bool, allow_dirty: bool) -> None:
    """Write changed files, each atomically.

    Args:
        program: Our name.
        files: The files that `show_diff` has printed.
        yes: Do not ask for confirmation.
        allow_dirty: Also write files with uncommitted changes in git.

    Raises:
        UsageError: a file has such changes.
        CsrunError: a file has changed since it was read, or cannot be written.
    """
    dirty = []
    git = shutil.which("git")
    for file in files if git and not allow_dirty else ():
        place = Path(file.name).resolve()
        command = (git or "", "-C", str(place.parent), "status", "--porcelain", "--", place.name)
        status = subprocess.run(command, capture_output=True, text=True, check=False)
        if status.returncode == 0 and status.stdout.strip():  # it fails outside of a repository
            dirty.append(file.name)
    if dirty:
        raise UsageError(
            f"--apply: {', '.join(dirty)}: there are uncommitted changes; expected a file that git can "
            "restore: commit or stash them, or give --allow-dirty"
        )
    if not files:
        return
    if not yes:
        what = "this file" if len(files) == 1 else f"these {len(files)} files"
        write_text(STDERR, f"Write the changes to {what}? [y/N] ")
        if sys.stdin.readline().strip().lower() not in ("y", "yes"):
            return
    for file in files:
        path = Path(file.name).resolve()  # a link stays a link
        try:
            if path.read_bytes().decode() != file.before:
                raise CsrunError(f"{file.name} was changed since it was read; expected no change: run again")
            mode = path.stat().st_mode
            replace_file(path, file.after)
            path.chmod(mode)
        except OSError as error:
            raise CsrunError(
                f"{file.name} cannot be written: {error.strerror}; expected a writable file"
            ) from error
        say(program, f"changed: {file.name}")
