"""Aliases of packages: a package and all its modules under another name."""

from __future__ import annotations

import sys
from importlib import import_module
from pkgutil import walk_packages
from types import ModuleType


def alias(name: str, package: str, enclosing: tuple[str, ...] = ()) -> None:
    """Make a package, and every module below it, importable by another name too.

    Called by the module of that name, which is replaced. A module is the same object under both names, so
    that changes to one are visible in the other.

    Args:
        name: `__name__` of the caller, or the name of a further module below it.
        package: Name of the existing package.
        enclosing: Packages that `name` is in already: modules refer to each other in circles.
    """
    root = sys.modules[name] = import_module(package)
    for found in walk_packages(getattr(root, "__path__", ()), f"{package}."):
        sys.modules[name + found.name.removeprefix(package)] = import_module(found.name)
    parent, _, own = name.rpartition(".")
    if parent in sys.modules:  # `import a.b.c as d` reads attributes
        setattr(sys.modules[parent], own, root)
    top = package.partition(".")[0]
    enclosing = (*enclosing, package)
    for attribute, value in list(vars(root).items()):  # sibling packages that the root imports
        other = isinstance(value, ModuleType) and value.__name__.startswith(f"{top}.")
        if other and not f"{value.__name__}.".startswith(tuple(f"{known}." for known in enclosing)):
            alias(f"{name}.{attribute}", value.__name__, enclosing)
