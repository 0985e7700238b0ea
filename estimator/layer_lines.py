"""The lines of a program that create the layers of a Keras model, for messages and reports."""

# Keras does not record them, and in the stack of a traced operation the only line of the program is the call
# that traces the model.

from __future__ import annotations

import inspect
import sys
from functools import cache
from types import FrameType, ModuleType
from typing import Any
from weakref import WeakKeyDictionary

from cs_toolkit.import_hooks import on_import
from cs_toolkit.source_files import is_user_file

# Modules with the base class `Layer` of Keras 3 and of Keras 2.
_BASES = ("keras.src.layers.layer", "tf_keras.src.engine.base_layer")

_lines: WeakKeyDictionary[Any, str] = WeakKeyDictionary()


@cache
def watch_layers() -> None:
    """Start to record the line of each layer that is created."""
    for name in _BASES:
        module = sys.modules.get(name)
        if module is not None:
            _watch(module)
    on_import({name: _watch for name in _BASES if name not in sys.modules})


def line_of(layer: Any) -> str | None:
    """Return `FILE:LINE` at which a layer was created; None for a class of the user, and if it is unknown."""
    # The operations of a class of the user have their own lines.
    try:
        is_users = is_user_file(inspect.getfile(type(layer)))
    except (OSError, TypeError):  # defined in a console
        is_users = True
    return None if is_users else _lines.get(layer)


def _watch(module: ModuleType) -> None:
    base = vars(module)["Layer"]
    own = base.__new__

    def make(cls: type, *arguments: Any, **keywords: Any) -> Any:
        layer = own(cls, *arguments, **keywords)
        frame: FrameType | None = sys._getframe(1)
        while frame is not None and not is_user_file(frame.f_code.co_filename):
            frame = frame.f_back
        if frame is not None:
            _lines[layer] = f"{frame.f_code.co_filename}:{frame.f_lineno}"
        return layer

    base.__new__ = staticmethod(make)
