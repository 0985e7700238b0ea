"""Commands that no analysis can be made of, told before it begins."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path
from shlex import join

from cs_toolkit.errors import UsageError


def refuse_no_program(words: Sequence[str], path: str) -> None:
    """Whether a command is the name of a Python file, or a function with words behind it.

    Args:
        words: Of the command.
        path: Folders of programs, as in PATH.

    Raises:
        UsageError: so it is.
    """
    from input_analyzer.standalone import looks_like_function

    word, *behind = words
    if shutil.which(word, path=path):
        return
    if word.endswith(".py") and Path(word).is_file():
        raise UsageError(
            f"{word} is a file and no program; expected 'python {word}' for a program that trains or "
            f"compiles, or '{word}:FUNCTION' for a function in it that returns a dataset"
        )
    if behind and looks_like_function(word):
        raise UsageError(
            f"{word} names a function, and behind it stands {join(behind)!r}; expected the function as the "
            f"last word and flags before it: cs_input_analyzer {join([*behind, word])}"
        )
