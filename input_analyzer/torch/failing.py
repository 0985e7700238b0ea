"""What helps against an error that a DataLoader has raised, beside its traceback."""

from __future__ import annotations

import re
import traceback
from pathlib import Path

import torch.utils.data

from input_analyzer.measure.traces import shows_users_line
from input_analyzer.torch.loader import held_open
from input_analyzer.torch.origin import line_of_call, noting_calls
from input_rules.handover import InputProgram, Shard

_TORCHS = str(Path(torch.utils.data.__file__).parent)
_FRAME = re.compile(r'File "([^"]+)", line \d+, in (\w+)')

_HINTS = (
    ("equal size", "pad or crop records to one shape, in the dataset or in a collate_fn of yours"),
    ("default_collate: batch must contain", "make tensors, arrays or numbers of it, or give a collate_fn"),
    ("timed out after", "without `timeout` an analysis names the line of yours where the worker hangs"),
    ("pickle", "workers are sent the dataset: let it hold functions and classes of a module, no lambdas"),
)
"""Words of an error, and what to do."""


def what_helps(program: InputProgram, shard: Shard, error: BaseException) -> str:
    """Where torch raised an error that names no line of the user's, and what to do; "" if that is not known.

    Args:
        program: The input.
        shard: As which it was read.
        error: What was raised when a batch was asked for.
    """
    text = "".join(traceback.format_exception(error))
    function = _torchs_function(text)
    if function is None:
        return ""
    with program.role(shard), noting_calls():
        loader = program.build(shard)
    said = []
    if not shows_users_line(error) and (line := line_of_call(loader)) is not None:
        said.append(f"raised in {function}() of torch, for the DataLoader in {line}")
    said += [hint for words, hint in _HINTS if words in text][:1]
    if (held := held_open(loader)) is not None:
        said.append(
            f"{held} was open before the workers began, which share the position in it: open it where a "
            "record is first read"
        )
    return "; ".join(said)


def _torchs_function(text: str) -> str | None:
    """The function of torch that was called last, of a traceback in which its data loading occurs."""
    frames = _FRAME.findall(text)
    return next((name for file, name in reversed(frames) if file.startswith(_TORCHS)), None)
