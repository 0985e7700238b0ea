"""Changes of the user's source that findings recommend: shown, and written where the user agrees."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from cs_toolkit.errors import UsageError
from cs_toolkit.files import replace_file
from csrun.console import STDERR, STDOUT, say, write_text
from csrun.errors import CsrunError
from input_analyzer.source_diff import Changed, changes
from input_rules.findings import Finding


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
        _replace(file)
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


def _replace(file: Changed) -> None:
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
