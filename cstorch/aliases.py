"""One package under another name, with all its modules."""

from __future__ import annotations

import sys
from importlib import import_module
from pkgutil import walk_packages
from types import ModuleType

_PUBLIC = ("amp", "backends", "distributed", "metrics", "nn", "optim", "sparse", "utils")
"""What programs import by its path, with all that lies below; `import cstorch` imports them all."""


def alias(name: str, package: str) -> None:
    """Makes a package, and every module below it, importable by another name too.

    Called by the module of that name, which is replaced. A module has one object under both names, so what a
    program sets in one is seen in the other.

    Args:
        name: `__name__` of the caller.
        package: the name of the package that is there.
    """
    root = sys.modules[name] = import_module(package)
    for found in walk_packages(getattr(root, "__path__", ()), f"{package}."):
        sys.modules[name + found.name.removeprefix(package)] = import_module(found.name)
    for attribute, value in list(vars(root).items()):  # rooms of other packages
        other = isinstance(value, ModuleType) and value.__name__.startswith("cstorch.")
        if other and not value.__name__.startswith(f"{package}."):
            alias(f"{name}.{attribute}", value.__name__)


def public_modules(name: str) -> None:
    """Makes the public modules of `cstorch` importable below another name too.

    `import NAME.optim.lr_scheduler` then finds the very module `cstorch.optim.lr_scheduler`.
    """
    for path, module in list(sys.modules.items()):
        root, _, inner = path.partition(".")
        if root == "cstorch" and inner.split(".")[0] in _PUBLIC:
            sys.modules[f"{name}.{inner}"] = module
