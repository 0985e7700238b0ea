"""Makes `tensorflow.python.keras` an alias of `tf.keras`; programs of the time import layers by that name.

TensorFlow has a copy of an old Keras there for its own use. Its classes do not work together with those of
`tf.keras`: each has its own layers, policies and sessions. So once TensorFlow is imported, empty modules
replace those of the copy. They look up a name on access: among the public names of `tf.keras`, then in the
module of Keras 2 at the same path, then in the copy. TensorFlow and Keras themselves get the names of the
copy.
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

# Paths in `tf` of the public names of modules, and of all modules below them.
_PUBLIC: Mapping[str, tuple[str, ...]] = {
    "": ("keras",),
    "engine": ("keras.layers", "keras.models", "keras"),
    "mixed_precision.experimental": ("keras.mixed_precision.experimental", "keras.mixed_precision"),
    "mixed_precision.experimental.loss_scale_optimizer": ("keras.mixed_precision",),
    "mixed_precision.loss_scale": ("compat.v1.mixed_precision",),
    "optimizer_v2": ("keras.optimizers.legacy", "keras.optimizers.schedules", "keras.optimizers"),
    "saving": ("keras.models",),
}

# Modules that, with all modules below them, have another path in Keras 2.
_MOVED = {"mixed_precision.experimental": "mixed_precision", "optimizer_v2": "optimizers.legacy"}

# Modules of older releases that the copy lacks, and some of them Keras 2, too. Their classes are public.
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
    """Replace the modules of the copy that TensorFlow has loaded by aliases."""
    for name, module in list(sys.modules.items()):
        if name == NAME or name.startswith(f"{NAME}."):
            _copies[name] = module
            sys.modules[name] = _Alias(name)
    if NAME in _copies:
        vars(sys.modules["tensorflow.python"])["keras"] = sys.modules[NAME]
        finder: Any = _AliasFinder()
        sys.meta_path.insert(0, finder)


class _Alias(ModuleType):
    """A module that looks names up elsewhere."""

    def __init__(self, name: str) -> None:
        super().__init__(name, f"`{name}`: names of tf.keras.")
        self.__path__: list[str] = []

    def __getattr__(self, name: str) -> Any:
        if _is_accessed_by_owner(sys._getframe(1)):
            return getattr(_copy(self.__name__), name)
        if name == "__all__":
            return _public_names(self)
        if not name.startswith("__"):
            return _look_up(self.__name__, name)
        # Tools ask every module for its file and the like, which must not load anything.
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
        """Return the spec of an alias if there is such a module anywhere."""
        if not fullname.startswith(f"{NAME}.") or not _exists(fullname):
            return None
        loader: Any = self
        return ModuleSpec(fullname, loader, is_package=True)

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        """Create the alias."""
        return _Alias(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        """Do nothing: an alias has no code."""


def _is_accessed_by_owner(frame: FrameType | None) -> bool:
    """Return True if TensorFlow or Keras accesses a name, directly or by an import statement."""
    while frame is not None and frame.f_globals.get("__name__", "").startswith("importlib"):
        frame = frame.f_back
    asking = "" if frame is None else str(frame.f_globals.get("__name__", ""))
    return asking.partition(".")[0] in _OWNERS


def _look_up(module: str, name: str) -> Any:
    if not name[:1].isupper() and _exists(f"{module}.{name}"):
        return import_module(f"{module}.{name}")
    for home in _find_homes(module):
        value = getattr(home, name, None)
        if value is not None and not isinstance(value, ModuleType):
            return value
    value = getattr(_copy(module), name)
    if isinstance(value, type) and issubclass(value, _copy(f"{NAME}.engine.base_layer").Layer):
        raise AttributeError(
            f"{module}.{name} is a layer of TensorFlow's copy of Keras, which does not work with tf.keras, "
            f"and {_keras().__name__} has no layer of this name; use another one of tf.keras.layers"
        )
    return value


def _find_homes(module: str) -> Iterator[Any]:
    """Yield the modules of Keras in which the names of a module are looked up."""
    yield from filter(None, map(_public_value, _public_homes(_path(module))))
    if _keras_2_module(module):
        yield import_module(_keras_2_module(module))


def _public_homes(path: str) -> tuple[str, ...]:
    """Return the public homes of this module or of the nearest one above it, or else those of its path."""
    above = path
    while above and above not in _PUBLIC:
        above = above.rpartition(".")[0]
    own = (f"keras.{path}", f"keras.{path.partition('.')[0]}")
    return _PUBLIC[above] if above or not path else own


def _public_value(path: str) -> Any:
    """Return the value in `tf` at a path, or None."""
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
        or bool(_keras_2_module(module))
        or isinstance(_public_value(f"keras.{path}"), ModuleType)
    )


def _keras_2_module(module: str) -> str:
    """Return the module of Keras 2 at the same path, if `tf.keras` is Keras 2 and has it; else ""."""
    if _keras().__name__ != "tf_keras":
        return ""
    path = _path(module)
    for old, new in _MOVED.items():
        if path == old or path.startswith(f"{old}."):
            path = new + path[len(old) :]
    name = f"tf_keras.src.{path}".rstrip(".")
    try:
        return name if importlib.util.find_spec(name) is not None else ""
    except ModuleNotFoundError:  # its package is a module, or does not exist
        return ""


def _keras() -> ModuleType:
    """Return the package that `tf.keras` refers to: `tf_keras` or `keras`."""
    keras: Any = import_module("tensorflow").keras
    return import_module(keras.Model.__module__.partition(".")[0])


def _copy(name: str) -> ModuleType:
    """Return a module of the copy, loading it if TensorFlow has not.

    Raises:
        AttributeError: The copy has no such module.
    """
    if name not in _copies:
        spec = _copy_spec(name)
        if spec is None or spec.loader is None:
            raise AttributeError(f"module '{name}' has no such name, neither in tf.keras nor in TensorFlow")
        _copies[name] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(_copies[name])
    return _copies[name]


def _copy_spec(name: str) -> ModuleSpec | None:
    """Return the spec of a module of the copy, or None."""
    if name in _copies:
        return _copies[name].__spec__
    parent = name.rpartition(".")[0]
    folders = getattr(_copy(parent), "__path__", None) if _copy_spec(parent) is not None else None
    return PathFinder.find_spec(name, folders) if folders else None


def _public_names(module: _Alias) -> list[str]:
    homes = list(_find_homes(module.__name__))
    names = {name for home in homes for name in dir(home) if not name.startswith("_")}
    found = ((name, getattr(home, name, None)) for home in homes for name in names)
    return sorted({name for name, value in found if not isinstance(value, ModuleType | None)})


def _path(module: str) -> str:
    """Return the path of a module below NAME: `tensorflow.python.keras.layers.core` -> `layers.core`."""
    return module[len(NAME) + 1 :]
