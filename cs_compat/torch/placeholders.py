"""Placeholders for packages that the Model Zoo imports and this environment lacks.

Every command of the Model Zoo imports its evaluation harnesses, image transforms and chat notifications,
whether they are used or not. Some of these packages are on no index, others have no version that fits the
PyTorch of the environment. An import of a missing package by the Model Zoo succeeds with a placeholder; the
first use of anything in it raises the error that the import would have raised.

An import that the program guards with `try` fails as usual, and so does one by any other program.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from itertools import pairwise
from types import FrameType, ModuleType
from typing import Any, NoReturn

# Packages whose imports get placeholders: the Model Zoo under its current and former names.
_IMPORTERS = ("cerebras.modelzoo", "cerebras_reference_implementations", "modelzoo")

# Packages that no placeholder replaces: a missing name in them is an error of a program, or of the toolkit.
_OURS = ("cerebras", "cerebras_appliance", "cerebras_pytorch", "cerebras_torch", "modelzoo")


def install() -> None:
    """Ask for placeholders after all other ways to find a module."""
    finder: Any = _Finder()
    sys.meta_path.append(finder)


class _Placeholder(type):
    """A class of a missing package: annotations may name it, classes may inherit from it."""

    def __getattr__(cls, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _make_class(cls.__module__, f"{cls.__qualname__}.{name}")

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        if sys._getframe(1).f_code.co_name != "<module>":
            _refuse(cls)
        # A decorator, which registers with the package.
        return _keep if kwargs or not args or isinstance(args[0], str) else args[0]

    def __iter__(cls) -> NoReturn:
        _refuse(cls)


def _refuse(cls: type) -> NoReturn:
    missing = next(base for base in cls.__mro__ if vars(base).get("_is_missing"))
    package = missing.__module__.partition(".")[0]
    text = (
        f"No module named {package!r}, which has {missing.__module__}.{missing.__qualname__}; add it: "
        f"csrun pip install {package} (it may have another name)"
    )
    older = vars(missing).get("_older")
    if older is not None:
        text = (
            f"this version of {package} has no {missing.__qualname__}; get one: csrun pip install '{older}'"
        )
    error: Any = ModuleNotFoundError(text, name=package)
    error.exit_code = 1  # an error of the program, although it is raised in a line of the toolkit
    raise error


def _keep(decorated: Any) -> Any:
    return decorated


def add_retired_names(module: ModuleType, names: Sequence[str], older: str) -> None:
    """Let programs import classes that later versions of a package have removed.

    Args:
        module: The package.
        names: Classes that older versions have; the first use of one raises an error.
        older: The requirement that asks for such a version.
    """
    for name in names:
        if not hasattr(module, name):
            setattr(module, name, _make_class(module.__name__, name, older))


def _make_class(module: str, name: str, older: str | None = None) -> type:
    members = {"_is_missing": True, "_older": older, "__module__": module, "__qualname__": name}
    return _Placeholder(name, (), members)


class _PlaceholderModule(ModuleType):
    """A module of a missing package; each name in it is a class that cannot be instantiated."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        made = _make_class(self.__name__, name)
        setattr(self, name, made)
        return made


class _Finder:
    """Finds placeholders for imports of the Model Zoo outside of `try`."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return the spec of a placeholder, or None where the import has to fail."""
        package, _, inner = fullname.partition(".")
        if inner:
            if not isinstance(sys.modules.get(package), _PlaceholderModule):
                return None
        elif package in _OURS or not _is_unguarded_import(sys._getframe(1)):
            return None
        else:
            import warnings  # late: every start of an interpreter loads this module

            warnings.warn(
                f"the package {package} is not installed; the Model Zoo fails where it uses it",
                stacklevel=2,
            )
        loader: Any = self
        return ModuleSpec(fullname, loader, is_package=True)

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        """Make the placeholder."""
        return _PlaceholderModule(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        """Leave the placeholder empty: its names are made when they are asked for."""


def _is_unguarded_import(frame: FrameType | None) -> bool:
    """Return True if the import that runs is a statement of the Model Zoo outside of any `try`."""
    importing = False
    while frame is not None and frame.f_globals.get("__name__", "").partition(".")[0] in (
        "importlib",
        "_frozen_importlib",
    ):
        importing = importing or frame.f_code.co_name == "_find_and_load"
        frame = frame.f_back
    if frame is None or not importing:  # importlib.util.find_spec only asks
        return False
    name = f"{frame.f_globals.get('__name__', '')}."
    return name.startswith(tuple(f"{package}." for package in _IMPORTERS)) and not _is_guarded(frame)


def _is_guarded(frame: FrameType) -> bool:
    """Return True if an exception at the running instruction has a handler in the same function.

    A `with` block has one in its bytecode, too, but it handles an error only where it suppresses it.
    """
    import dis  # late, as above

    code = dis.Bytecode(frame.f_code)
    entries: Any = vars(code)["exception_entries"]
    names = {instruction.offset: instruction.opname for instruction in code}
    following = dict(pairwise(names))
    offset = frame.f_lasti
    while (entry := next((x for x in entries if x.start <= offset < x.end), None)) is not None:
        offset = entry.target
        if names[offset] == "PUSH_EXC_INFO" and names[following[offset]] != "WITH_EXCEPT_START":
            return True
        if names[offset] == "PUSH_EXC_INFO" and "suppress" in frame.f_code.co_names:
            return True
    return False
