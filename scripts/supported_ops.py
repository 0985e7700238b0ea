"""Write docs/reference/supported-ops.md from the tables of the importers.

Usage: `.venv/bin/python scripts/supported_ops.py`.

A test fails if the page is older than the tables.
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

PAGE = Path(__file__).resolve().parent.parent / "docs" / "reference" / "supported-ops.md"
HEAD = """\
# Operations that can be compiled

This page is generated from the importers' tables by `scripts/supported_ops.py`.

You do not need these names to write a program. `--mode=validate_only` checks a whole program, and
lists each operation that cannot be compiled with the line of your code. Messages and `error.json`
use these names. [Troubleshooting](troubleshooting.md#the-program) has suggestions.

"""
TENSORFLOW = """\
## TensorFlow

Names are the types of operations in a graph: `tf.matmul` is `MatMul` or `BatchMatMulV2`. Functions
of TensorFlow that consist of these operations work too, and so do [layers of
Keras](../how-to/port-tensorflow.md#layers-of-keras). The table includes gradients.

"""
PYTORCH = """\
## PyTorch

Names are those of ATen without their overloads: `torch.relu` is `relu`. Functions that PyTorch
decomposes into these operations work too. All layers and losses of `torch.nn` can be trained.

"""
DROPPED = """\
## Host-only operations

These act on the host. A step on the CS system leaves them out, and the log names each one in your
program once:

"""


def main() -> int:
    """Write the page."""
    PAGE.write_text(page(), encoding="utf-8")
    return 0


def page() -> str:
    """Render the page from the tables."""
    return (
        f"{HEAD}{TENSORFLOW}{table(tensorflow, lambda name: name, WORDS)}\n"
        f"{PYTORCH}{table(aten, aten_name)}\n"
        f"{DROPPED}{fill(names(WORDS), 99)}.\n"
    )


def table(handlers: ModuleType, shown: Callable[[str], str], left_out: Iterable[str] = ()) -> str:
    """Render a row for each file of handlers: its first line, and the operations of its table."""
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
    """Return True if a table is a part of an importer's table of operations."""
    whole = (handlers.HANDLERS, getattr(handlers, "COMPLEX_HANDLERS", {}))
    return any(table.items() <= known.items() for known in whole)


def first_sentence(module: ModuleType) -> str:
    """Return the first sentence of a file's docstring."""
    return (module.__doc__ or "").splitlines()[0].removesuffix(".")


def aten_name(overload: str) -> str:
    """Return `add` for `aten.add.Tensor`."""
    return overload.split(".")[1]


def names(operations: Iterable[str]) -> str:
    """Render names as code, in alphabetical order."""
    return ", ".join(f"`{name}`" for name in sorted(operations, key=str.lower))


if __name__ == "__main__":
    sys.exit(main())
