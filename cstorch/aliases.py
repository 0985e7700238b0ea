"""The public modules of `cstorch` under the names of the original package."""

from __future__ import annotations

import sys

_PUBLIC = ("amp", "backends", "distributed", "metrics", "nn", "optim", "sparse", "utils")
"""What programs import by its path, with all that lies below; `import cstorch` imports them all."""


def public_modules(name: str) -> None:
    """Make the public modules of `cstorch` importable below another name too.

    `import NAME.optim.lr_scheduler` then finds the very module `cstorch.optim.lr_scheduler`.
    """
    for path, module in list(sys.modules.items()):
        root, _, inner = path.partition(".")
        if root == "cstorch" and inner.split(".")[0] in _PUBLIC:
            sys.modules[f"{name}.{inner}"] = module
