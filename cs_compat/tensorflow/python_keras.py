"""`tensorflow.python.keras` is the Keras that `tf.keras` is; programs of the time import layers by that name.

TensorFlow keeps a copy of an old Keras there for its own use. Its classes and those of `tf.keras` do not work
together: each has its own layers, policies and sessions. So once TensorFlow is imported, modules without
contents take the place of the copy's. They look a name up when it is asked for: among the public names of
`tf.keras`, then in the module of Keras 2 at the same path, then in the copy. TensorFlow and Keras themselves
get what the copy has.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterator, Mapping, Sequence
from importlib import import_module
from importlib.machinery import ModuleSpec, PathFinder
from types import FrameType, ModuleType
from typing import Any

NAME = "tensorflow.python.keras"

# Packages that get the copy.
_OWNERS = frozenset({"tensorflow", "tf_keras", "keras"})

# Where `tf` has the public names of modules and of those below them.
_PUBLIC: Mapping[str, tuple[str, ...]] = {
    "": ("keras",),
    "engine": ("keras.layers", "keras.models", "keras"),
    "mixed_precision.experimental": ("keras.mixed_precision.experimental", "keras.mixed_precision"),
    "mixed_precision.experimental.loss_scale_optimizer": ("keras.mixed_precision",),
    "mixed_precision.loss_scale": ("compat.v1.mixed_precision",),
    "optimizer_v2": ("keras.optimizers.legacy", "keras.optimizers.schedules", "keras.optimizers"),
    "saving": ("keras.models",),
}

# Modules, and all below them, that have another path in Keras 2.
_MOVED = {"mixed_precision.experimental": "mixed_precision", "optimizer_v2": "optimizers.legacy"}

# Modules of former releases that the copy lacks; Keras 2 has not all of them. Their classes are public.
_FORMER = frozenset(
    f"layers.{module}"
    for module in (
        "cudnn_recurrent",
        "local",
        "noise",
        "normalization",
        "normalization_v2",
        "recurrent_v2",
        "wrappers",
    )
)

# The modules of TensorFlow's copy, by name.
_copies: dict[str, ModuleType] = {}


def install() -> None:
    """Puts modules of this kind in the place of those of the copy that TensorFlow has loaded."""
    for name, module in list(sys.modules.items()):
        if name == NAME or name.startswith(f"{NAME}."):
            _copies[name] = module
            sys.modules[name] = _Alias(name)
    if NAME in _copies:
        vars(sys.modules["tensorflow.python"])["keras"] = sys.modules[NAME]
        finder: Any = _AliasFinder()
        sys.meta_path.insert(0, finder)


class _Alias(ModuleType):
    """A module that has no names of its own."""

    def __init__(self, name: str) -> None:
        super().__init__(name, f"`{name}`: names of tf.keras.")
        self.__path__: list[str] = []

    def __getattr__(self, name: str) -> Any:
        if _asks_for_the_copy(sys._getframe(1)):
            return getattr(_copy(self.__name__), name)
        if name == "__all__":
            return _public_names(self)
        if not name.startswith("__"):
            return _found(self.__name__, name)
        # Tools ask every module for its file and the like: nothing is loaded for that.
        if self.__name__ not in _copies:
            raise AttributeError(f"module '{self.__name__}' has no attribute '{name}'")
        return getattr(_copies[self.__name__], name)

    def __dir__(self) -> list[str]:
        return sorted({*super().__dir__(), *_public_names(self)})


class _AliasFinder:
    """Finds modules below NAME that TensorFlow itself has not loaded."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """A spec of a module that looks names up, if there is such a module anywhere."""
        if not fullname.startswith(f"{NAME}.") or not _exists(fullname):
            return None
        loader: Any = self
        return ModuleSpec(fullname, loader, is_package=True)

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        """The module, complete."""
        return _Alias(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        """There is nothing to run."""


def _asks_for_the_copy(frame: FrameType | None) -> bool:
    """Whether TensorFlow or Keras asks, by itself or by way of an import statement."""
    while frame is not None and frame.f_globals.get("__name__", "").startswith("importlib"):
        frame = frame.f_back
    asking = "" if frame is None else str(frame.f_globals.get("__name__", ""))
    return asking.partition(".")[0] in _OWNERS


def _found(module: str, name: str) -> Any:
    if not name[:1].isupper() and _exists(f"{module}.{name}"):
        return import_module(f"{module}.{name}")
    for home in _homes(module):
        value = getattr(home, name, None)
        if value is not None and not isinstance(value, ModuleType):
            return value
    value = getattr(_copy(module), name)
    if isinstance(value, type) and issubclass(value, _copy(f"{NAME}.engine.base_layer").Layer):
        raise AttributeError(
            f"{module}.{name} is a layer of TensorFlow's copy of Keras, which does not go with tf.keras, "
            f"and {_keras().__name__} has no layer of this name; use another one of tf.keras.layers"
        )
    return value


def _homes(module: str) -> Iterator[Any]:
    """The modules of Keras in which the names of a module are looked for."""
    yield from filter(None, map(_public, _public_homes(_path(module))))
    if _in_keras_2(module):
        yield import_module(_in_keras_2(module))


def _public_homes(path: str) -> tuple[str, ...]:
    """Those of this module or the nearest above it that has some; else the public modules of its path."""
    above = path
    while above and above not in _PUBLIC:
        above = above.rpartition(".")[0]
    own = (f"keras.{path}", f"keras.{path.partition('.')[0]}")
    return _PUBLIC[above] if above or not path else own


def _public(path: str) -> Any:
    """What `tf` has at a path, or None."""
    value: Any = import_module("tensorflow")
    for part in path.split("."):
        value = getattr(value, part, None)
    return value


def _exists(module: str) -> bool:
    path = _path(module)
    return (
        path in _FORMER
        or path in _PUBLIC
        or _copy_spec(module) is not None
        or bool(_in_keras_2(module))
        or isinstance(_public(f"keras.{path}"), ModuleType)
    )


def _in_keras_2(module: str) -> str:
    """The module of Keras 2 at the same path, if `tf.keras` is Keras 2 and has it; else an empty text."""
    if _keras().__name__ != "tf_keras":
        return ""
    path = _path(module)
    for old, new in _MOVED.items():
        if path == old or path.startswith(f"{old}."):
            path = new + path[len(old) :]
    name = f"tf_keras.src.{path}".rstrip(".")
    try:
        return name if importlib.util.find_spec(name) is not None else ""
    except ModuleNotFoundError:  # what would be its package is a module, or is not there
        return ""


def _keras() -> ModuleType:
    """The package that `tf.keras` is: `tf_keras` or `keras`."""
    keras: Any = import_module("tensorflow").keras
    return import_module(keras.Model.__module__.partition(".")[0])


def _copy(name: str) -> ModuleType:
    """A module of the copy; loads those that TensorFlow has not loaded.

    Raises:
        AttributeError: the copy has no such module, so it has none of its names either.
    """
    if name not in _copies:
        spec = _copy_spec(name)
        if spec is None or spec.loader is None:
            raise AttributeError(f"module '{name}' has no such name, neither in tf.keras nor in TensorFlow")
        _copies[name] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(_copies[name])
    return _copies[name]


def _copy_spec(name: str) -> ModuleSpec | None:
    """Where the copy has a module."""
    if name in _copies:
        return _copies[name].__spec__
    parent = name.rpartition(".")[0]
    folders = getattr(_copy(parent), "__path__", None) if _copy_spec(parent) is not None else None
    return PathFinder.find_spec(name, folders) if folders else None


def _public_names(module: _Alias) -> list[str]:
    homes = list(_homes(module.__name__))
    names = {name for home in homes for name in dir(home) if not name.startswith("_")}
    found = ((name, getattr(home, name, None)) for home in homes for name in names)
    return sorted({name for name, value in found if not isinstance(value, ModuleType | None)})


def _path(module: str) -> str:
    """`tensorflow.python.keras.layers.core` -> `layers.core`."""
    return module[len(NAME) + 1 :]
