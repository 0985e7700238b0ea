"""Commands that no analysis can be made of, told before it begins."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path
from shlex import join

from cs_toolkit.errors import UsageError


def refuse_python_file(words: Sequence[str], path: str) -> None:
    """Whether the command is the name of a Python file, which is no program.

    Raises:
        UsageError: so it is.
    """
    word = words[0]
    if not word.endswith(".py") or not Path(word).is_file() or shutil.which(word, path=path):
        return
    raise UsageError(
        f"{word} is a file and no program; expected 'python {word}' for a program that trains or compiles, "
        f"or '{word}:FUNCTION' for a function in it that returns a dataset"
    )


def refuse_words_behind_function(words: Sequence[str], path: str) -> None:
    """Whether a function is followed by words, as flags of ours in the wrong place are.

    Raises:
        UsageError: so it is.
    """
    from input_analyzer.standalone import looks_like_function

    word, *behind = words
    if not behind or not looks_like_function(word) or shutil.which(word, path=path):
        return
    raise UsageError(
        f"{word} names a function, and behind it stands {join(behind)!r}; expected the function as the last "
        f"word and flags before it: cs_input_analyzer {join([*behind, word])}"
    )
