"""Settings of the original's compiler in its debug arguments."""

from __future__ import annotations

from typing import Any

from cs_toolkit.messages import Message

_KINDS: tuple[tuple[type, str], ...] = ((bool, "bools"), (int, "ints"), (float, "floats"), (str, "strings"))


def set_ini(debug_args: Message, **kwargs: Any) -> None:
    """Set settings of the original's compiler; they have no effect here.

    Raises:
        TypeError: A value is no bool, int, float or str.
    """
    for name, value in kwargs.items():
        getattr(debug_args.ini, _kind_of(name, value))[name] = value


def set_default_ini(debug_args: Message, **kwargs: Any) -> None:
    """Set the settings that have no value yet.

    Raises:
        TypeError: A value is no bool, int, float or str.
    """
    for name, value in kwargs.items():
        settings = getattr(debug_args.ini, _kind_of(name, value))
        if name not in settings:
            settings[name] = value


def _kind_of(name: str, value: Any) -> str:
    for kind, field in _KINDS:
        if isinstance(value, kind):
            return field
    raise TypeError(f"{name} is a {type(value).__name__}, expected a bool, int, float or str")
