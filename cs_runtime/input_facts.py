"""What identifies the input of a program in all tasks of a job, whatever the framework."""

from __future__ import annotations

import hashlib
import inspect
import sys
from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import Any


def input_facts(mode: str, function: Any, tensors: Iterable[str]) -> dict[str, str]:
    """See `cs_runtime.source.InputSource.input_facts`: mode, files of the program, input function, tensors.

    Parameters are not among them: a program may change them while it runs, in one task only.

    Args:
        mode: What the step does.
        function: The user's input function.
        tensors: Name, type and shape of every tensor of a batch, as text.
    """
    while isinstance(function, partial):
        function = function.func
    numbered = {f"tensor {index}": text for index, text in enumerate(tensors)}
    return {
        "mode": mode,
        "program": _file_mark(getattr(sys.modules.get("__main__"), "__file__", None)),
        "input function": f"{getattr(function, '__qualname__', type(function).__name__)} in "
        f"{_file_mark(_source_file(function))}",
        "number of tensors": str(len(numbered)),
        **numbered,
    }


def described_function(function: Any) -> str:
    """What a user knows a function by: `model_fn in model.py`."""
    while isinstance(function, partial):
        function = function.func
    name = getattr(function, "__qualname__", type(function).__name__)
    file = _source_file(function)
    return name if file is None else f"{name} in {Path(file).name}"


def _source_file(function: Any) -> str | None:
    for candidate in (function, type(function)):  # an object with __call__ has the file of its class
        try:
            return inspect.getsourcefile(candidate)
        except (TypeError, OSError):
            continue
    return None


def _file_mark(path: str | None) -> str:
    """Name and content of a file, the same wherever a machine has it: `run.py (sha256 1f3870be274f)`."""
    if path is None:
        return "no file"
    try:
        content = Path(path).read_bytes()
    except OSError:
        return Path(path).name
    return f"{Path(path).name} (sha256 {hashlib.sha256(content).hexdigest()[:12]})"
