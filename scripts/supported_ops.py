"""docs/supported-ops.md, from the tables of the importers: `.venv/bin/python scripts/supported_ops.py`.

A test says when the page is older than the tables.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from textwrap import fill
from types import ModuleType

from cgc.importers.aten.handlers import table as aten
from cgc.importers.tensorflow.body import WORDS
from cgc.importers.tensorflow.handlers import table as tensorflow

PAGE = Path(__file__).resolve().parent.parent / "docs" / "supported-ops.md"
HEAD = """\
# Operations that can be compiled

This page is generated from the importers' tables by `scripts/supported_ops.py`.

A program does not have to know these names. `--mode=validate_only` checks a whole program, and
names each operation that cannot be compiled with your line. The names are those of messages and of
`error.json`. What to do about one is in [troubleshooting.md](troubleshooting.md#the-program).

"""
TENSORFLOW = """\
## TensorFlow

Names are the types of operations in a graph: `tf.matmul` is `MatMul` or `BatchMatMulV2`. Functions
of TensorFlow that are made of these work too, and so do [layers of
Keras](port-tensorflow.md#layers-of-keras). Gradients are in the table.

"""
PYTORCH = """\
## PyTorch

Names are those of ATen without their overloads: `torch.relu` is `relu`. Functions that PyTorch
makes of these work too. All layers and losses of `torch.nn` train.

"""
DROPPED = """\
## Left out of a step

These act on the host. A step on the CS system goes without them, and the log names each of yours
once:

"""


def main() -> int:
    """Writes the page."""
    PAGE.write_text(page(), encoding="utf-8")
    return 0


def page() -> str:
    """The page as the tables have it."""
    return (
        f"{HEAD}{TENSORFLOW}{table(tensorflow, lambda name: name, WORDS)}\n"
        f"{PYTORCH}{table(aten, aten_name)}\n"
        f"{DROPPED}{fill(names(WORDS), 99)}.\n"
    )


def table(handlers: ModuleType, shown: Callable[[str], str], left_out: Iterable[str] = ()) -> str:
    """A row for each file of handlers: what its first line says, and the operations of its table."""
    files = {module for module in vars(handlers).values() if isinstance(module, ModuleType)}
    used = [
        module
        for module in sorted(files, key=first_sentence)
        if getattr(module, "TABLE", {}) and _is_used(module.TABLE, handlers)
    ]
    rows = [
        f"| {first_sentence(module)} | {names(set(map(shown, module.TABLE.keys() - set(left_out))))} |"
        for module in used
    ]
    return "\n".join(["| what | operations |", "|---|---|", *rows, ""])


def _is_used(table: dict[str, object], handlers: ModuleType) -> bool:
    """Return True if a table is a part of what an importer looks operations up in."""
    whole = (handlers.HANDLERS, getattr(handlers, "COMPLEX_HANDLERS", {}))
    return any(table.items() <= known.items() for known in whole)


def first_sentence(module: ModuleType) -> str:
    """What a file of handlers is about, from its docstring."""
    return (module.__doc__ or "").splitlines()[0].removesuffix(".")


def aten_name(overload: str) -> str:
    """`aten.add.Tensor` is `add`."""
    return overload.split(".")[1]


def names(operations: Iterable[str]) -> str:
    """In alphabetical order, as code."""
    return ", ".join(f"`{name}`" for name in sorted(operations, key=str.lower))


if __name__ == "__main__":
    sys.exit(main())
