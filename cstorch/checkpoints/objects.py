"""Leaves of a checkpoint that are neither tensors, numbers nor strings, such as types of elements.

Writers of the format pickle them. Here a pickle is decoded as data: its opcodes build containers, and a
name in it stands for one of the few types below. Nothing is imported and nothing of the file is called.
"""

from __future__ import annotations

import pickle
import pickletools
from collections import OrderedDict
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch

_PROTOCOL = 4
"""Of what is written: the highest that all readers have."""

WRITTEN = (frozenset, torch.dtype, torch.device, np.dtype, complex, bytes)
"""Types of leaves that are written as objects."""


class NoDataError(ValueError):
    """A pickle that builds more than plain data."""


class _Name(NamedTuple):
    """A name that a pickle refers to."""

    module: str
    name: str


_CALLED: dict[str, Callable[..., Any]] = {
    "set": set,
    "frozenset": frozenset,
    "complex": complex,
    "bytearray": bytearray,
    "OrderedDict": OrderedDict,
    "Size": torch.Size,
    "device": torch.device,
    "dtype": np.dtype,
}
"""Types whose instances a pickle builds by a call, by name; they keep what they get."""

_MODULES = ("builtins", "__builtin__", "collections", "numpy", "torch", "_codecs")
_MARK = object()
_CONSTANTS = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False}
_EMPTY: dict[str, Callable[[], Any]] = {
    "EMPTY_LIST": list,
    "EMPTY_DICT": dict,
    "EMPTY_SET": set,
    "EMPTY_TUPLE": tuple,
}
_IGNORED = ("PROTO", "FRAME", "STOP")
_TUPLES = {"TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3}
_PUSHED = ("INT", "LONG", "FLOAT", "STRING", "UNICODE", "BYTES")
"""Parts of the names of opcodes whose argument is their value."""


def encode(value: Any) -> bytes:
    """Return the pickle of an object of one of the `WRITTEN` types.

    Raises:
        ValueError: something else is in it.
    """
    content = pickle.dumps(value, _PROTOCOL)
    decode(content)
    return content


def decode(content: bytes) -> Any:
    """Return the data in a pickle.

    Raises:
        NoDataError: it is no pickle, or one that builds more than plain data.
    """
    try:
        return _Builder().build(content)
    except NoDataError:
        raise
    except (ValueError, TypeError, IndexError, KeyError, AttributeError) as error:
        raise NoDataError(f"damaged ({error})") from error


class _Builder:
    """Builds the value of a pickle on a stack, as its opcodes say."""

    def __init__(self) -> None:
        self._stack: list[Any] = []
        self._memo: dict[int, Any] = {}

    def build(self, content: bytes) -> Any:
        """Return the value of the whole pickle."""
        for opcode, argument, _ in pickletools.genops(content):
            self._follow(opcode.name, argument)
        (found,) = self._stack
        return _resolved(found)

    def _follow(self, name: str, argument: Any) -> None:
        stack = self._stack
        if name in _IGNORED:
            return
        if name in _CONSTANTS:
            stack.append(_CONSTANTS[name])
        elif name in _EMPTY:
            stack.append(_EMPTY[name]())
        elif name in _TUPLES:
            stack.append(tuple(map(_resolved, self._pop(_TUPLES[name]))))
        elif name == "MARK":
            stack.append(_MARK)
        elif name == "MEMOIZE":
            self._memo[len(self._memo)] = stack[-1]
        elif name.endswith("PUT"):
            self._memo[int(argument)] = stack[-1]
        elif name.endswith("GET"):
            stack.append(self._memo[int(argument)])
        elif name == "GLOBAL":
            stack.append(_Name(*argument.split(" ")))
        elif name == "STACK_GLOBAL":
            stack.append(_Name(*self._pop(2)))
        elif any(part in name for part in _PUSHED):
            stack.append(argument)
        else:
            self._combine(name)

    def _combine(self, name: str) -> None:
        """Put the newest values of the stack together."""
        stack = self._stack
        if name in ("LIST", "TUPLE", "FROZENSET"):
            kind = {"LIST": list, "TUPLE": tuple, "FROZENSET": frozenset}[name]
            stack.append(kind(self._pop_to_mark()))
        elif name in ("APPEND", "APPENDS"):
            items = self._pop_to_mark() if name == "APPENDS" else self._pop(1)
            stack[-1].extend(map(_resolved, items))
        elif name == "ADDITEMS":
            items = self._pop_to_mark()
            stack[-1].update(items)
        elif name in ("SETITEM", "SETITEMS", "DICT"):
            items = self._pop(2) if name == "SETITEM" else self._pop_to_mark()
            if name == "DICT":
                stack.append({})
            stack[-1].update(zip(items[::2], map(_resolved, items[1::2]), strict=True))
        elif name == "REDUCE":
            called, arguments = self._pop(2)
            stack.append(_call(called, arguments))
        elif name == "BUILD" and isinstance(stack[-2], np.dtype):
            dtype, (_, byte_order, *_) = self._pop(2)
            stack.append(dtype.newbyteorder(byte_order))
        else:
            raise NoDataError(f"it has the opcode {name}")

    def _pop(self, count: int) -> list[Any]:
        found = self._stack[-count:]
        del self._stack[-count:]
        return found

    def _pop_to_mark(self) -> list[Any]:
        start = len(self._stack) - 1 - self._stack[::-1].index(_MARK)
        found = [_resolved(item) for item in self._stack[start + 1 :]]
        del self._stack[start:]
        return found


def _call(called: Any, arguments: tuple[Any, ...]) -> Any:
    if called == ("dill._dill", "_load_type"):  # a built-in type in pickles of dill
        return _Name("builtins", *arguments)
    if isinstance(called, _Name) and called.module in _MODULES:
        if called == ("_codecs", "encode"):  # bytes in pickles of the lower protocols
            text, encoding = arguments
            if encoding == "latin1":
                return text.encode("latin1")
        elif called.name in _CALLED:
            return _CALLED[called.name](*arguments)
    raise NoDataError(f"it calls {'.'.join(called) if isinstance(called, _Name) else called!r}")


def _resolved(value: Any) -> Any:
    """Return the element type that a name stands for, and any other value as it is."""
    if not isinstance(value, _Name):
        return value
    found = getattr(torch, value.name, None) if value.module == "torch" else None
    if not isinstance(found, torch.dtype):
        raise NoDataError(f"it refers to {'.'.join(value)}")
    return found
