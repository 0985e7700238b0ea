"""Names of the original that this toolkit has not."""

from __future__ import annotations

from typing import NoReturn

from cstorch.errors import NotThereError

_REASONS = {
    "mesh": "one CS system runs the whole step; leave the mesh out",
    "profiler": "rates are in `executor.profiler`, times of the run in performance.json",
    "register_decomposition": "write an operation without a rule with other operations of torch",
    "storage": "checkpoints are files; give a path to cstorch.save and cstorch.load",
}


def absent(name: str) -> NoReturn:
    """Raises the error of a name that `cstorch`, or a module of it, has not.

    Args:
        name: Its path below `cstorch`.

    Raises:
        NotThereError: with the reason, where the original has the name.
        AttributeError: nobody has it.
    """
    if name in _REASONS:
        raise NotThereError(f"cstorch.{name} is not there: {_REASONS[name]}")
    module, _, own = f"cstorch.{name}".rpartition(".")
    raise AttributeError(f"module {module!r} has no attribute {own!r}")
