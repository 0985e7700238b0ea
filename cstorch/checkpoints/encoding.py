"""Encodings of a checkpoint's structure, and of leaves that are neither tensors, numbers nor strings.

Nests of dicts, lists and tuples become flat entries and a JSON text, in the form of PyTorch's tree specs.
Sets and `torch.Size` are nodes, too; other containers, such as a frozenset, are leaves.

Writers of the format pickle other leaves, such as element types. Here a pickle is decoded as data: its
opcodes build containers, and a name in it refers to one of a few types. Nothing is imported, and nothing in
the file is called.
"""

from __future__ import annotations

import json
import pickle
import pickletools
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch

from cstorch.errors import CheckpointError

Leaf = Callable[[str], Any]
"""Returns the leaf with a dotted key."""

_PROTOCOL = 1
_LEAF: dict[str, Any] = {"type": None, "context": None, "children_spec": []}
_DICTS: dict[str, Callable[[Any], Any]] = {
    "builtins.dict": dict,
    "collections.OrderedDict": OrderedDict,
    "collections.defaultdict": dict,  # the default of a missing key is a function
}
_LISTS: dict[str, Callable[[Any], Any]] = {
    "builtins.list": list,
    "builtins.tuple": tuple,
    "collections.namedtuple": tuple,  # its class belongs to the program that wrote it
    "collections.deque": deque,
    "builtins.set": set,
    "torch.Size": torch.Size,
}

_PICKLE_PROTOCOL = 4
"""The highest protocol that all readers support."""
OBJECT_TYPES = (frozenset, torch.dtype, torch.device, np.dtype, complex, bytes)
"""Types of leaves that are written as objects."""
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
"""Types whose instances a pickle may build by a call, by name."""
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
"""Parts of the names of opcodes that push their argument."""


def tree_leaves(nest: Any, prefix: tuple[str, ...] = ()) -> Iterator[tuple[str, Any]]:
    """Yield dotted keys and leaves of a nest, in order."""
    children = _children(nest)
    if children is None:
        yield ".".join(prefix), nest
        return
    for key, child in children:
        yield from tree_leaves(child, (*prefix, str(key)))


def encode_tree(nest: Any) -> str:
    """Encode the structure of a nest: JSON of a skeleton with "*" for leaves, and the text of a tree spec."""
    return json.dumps([_skeleton(nest), json.dumps([_PROTOCOL, _spec(nest)])])


def leaf_spec(key: str) -> list[Any]:
    """Return the encoding of a dict with one leaf, before it becomes JSON."""
    return [{key: "*"}, json.dumps([_PROTOCOL, _spec({key: None})])]


def decode_tree(text: str, leaf: Leaf) -> Any:
    """Build the nest that a text describes.

    Raises:
        CheckpointError: a container is of an unknown kind.
    """
    _, spec = json.loads(text)
    return _build(json.loads(spec)[1], (), leaf)


def _children(nest: Any) -> list[tuple[Any, Any]] | None:
    if isinstance(nest, Mapping):
        return list(nest.items())
    if isinstance(nest, list | tuple | deque):
        return list(enumerate(nest))
    if isinstance(nest, set):
        return list(enumerate(sorted(nest, key=repr)))
    return None


def _skeleton(nest: Any) -> Any:
    children = _children(nest)
    if children is None:
        return "*"
    if isinstance(nest, Mapping):
        return {str(key): _skeleton(child) for key, child in children}
    return [_skeleton(child) for _, child in children]


def _spec(nest: Any) -> dict[str, Any]:
    children = _children(nest)
    if children is None:
        return _LEAF
    context = "null"
    if isinstance(nest, Mapping):
        kind = "collections.OrderedDict" if isinstance(nest, OrderedDict) else "builtins.dict"
        context = json.dumps([_plain_key(key) for key in nest])
    else:
        kind = _kind_of_sequence(nest)
        if kind == "collections.deque":
            context = json.dumps(nest.maxlen)
    return {"type": kind, "context": context, "children_spec": [_spec(child) for _, child in children]}


def _kind_of_sequence(nest: Any) -> str:
    if isinstance(nest, deque):
        return "collections.deque"
    if isinstance(nest, set):
        return "builtins.set"
    if isinstance(nest, torch.Size):
        return "torch.Size"
    return "builtins.tuple" if isinstance(nest, tuple) else "builtins.list"


def _plain_key(key: Any) -> Any:
    if isinstance(key, str | int | float | bool) or key is None:
        return key
    raise CheckpointError(
        f"the dict key {key!r} is a {type(key).__name__}, expected str, int, float, bool or None; "
        "save under another key"
    )


def _build(spec: Mapping[str, Any], prefix: tuple[str, ...], leaf: Leaf) -> Any:
    kind, children = spec["type"], spec["children_spec"]
    if kind is None:
        return leaf(".".join(prefix))
    if kind in _DICTS:
        context = spec["context"]
        if isinstance(context, str):  # recent releases of PyTorch write the object itself
            context = json.loads(context)
        keys: Sequence[Any] = context["dict_context"] if isinstance(context, Mapping) else context
        built = [_build(child, (*prefix, str(key)), leaf) for key, child in zip(keys, children, strict=True)]
        return _DICTS[kind](zip(keys, built, strict=True))
    if kind in _LISTS:
        items = [_build(child, (*prefix, str(i)), leaf) for i, child in enumerate(children)]
        return deque(items, json.loads(spec["context"])) if _LISTS[kind] is deque else _LISTS[kind](items)
    raise CheckpointError(
        f"entry {'.'.join(prefix) or '(root)'} is a {kind}, expected one of "
        f"{', '.join([*_DICTS, *_LISTS])}; save it again as one of these"
    )


class NoDataError(ValueError):
    """The pickle builds more than plain data."""


class _Name(NamedTuple):
    """A name that a pickle refers to."""

    module: str
    name: str


def encode_object(value: Any) -> bytes:
    """Return the pickle of an object of one of the `WRITTEN` types.

    Raises:
        ValueError: it contains an object of another type.
    """
    content = pickle.dumps(value, _PICKLE_PROTOCOL)
    decode_object(content)
    return content


def decode_object(content: bytes) -> Any:
    """Return the data in a pickle.

    Raises:
        NoDataError: it is no pickle, or it builds more than plain data.
    """
    try:
        return _Builder().build(content)
    except NoDataError:
        raise
    except (ValueError, TypeError, IndexError, KeyError, AttributeError) as error:
        raise NoDataError(f"damaged ({error})") from error


class _Builder:
    """Builds the value of a pickle on a stack by following its opcodes."""

    def __init__(self) -> None:
        self._stack: list[Any] = []
        self._memo: dict[int, Any] = {}

    def build(self, content: bytes) -> Any:
        """Return the value of the whole pickle."""
        for opcode, argument, _ in pickletools.genops(content):
            self._follow(opcode.name, argument)
        (found,) = self._stack
        return _resolve(found)

    def _follow(self, name: str, argument: Any) -> None:
        stack = self._stack
        if name in _IGNORED:
            return
        if name in _CONSTANTS:
            stack.append(_CONSTANTS[name])
        elif name in _EMPTY:
            stack.append(_EMPTY[name]())
        elif name in _TUPLES:
            stack.append(tuple(map(_resolve, self._pop(_TUPLES[name]))))
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
        """Combine the topmost values of the stack."""
        stack = self._stack
        if name in ("LIST", "TUPLE", "FROZENSET"):
            kind = {"LIST": list, "TUPLE": tuple, "FROZENSET": frozenset}[name]
            stack.append(kind(self._pop_to_mark()))
        elif name in ("APPEND", "APPENDS"):
            items = self._pop_to_mark() if name == "APPENDS" else self._pop(1)
            stack[-1].extend(map(_resolve, items))
        elif name == "ADDITEMS":
            items = self._pop_to_mark()
            stack[-1].update(items)
        elif name in ("SETITEM", "SETITEMS", "DICT"):
            items = self._pop(2) if name == "SETITEM" else self._pop_to_mark()
            if name == "DICT":
                stack.append({})
            stack[-1].update(zip(items[::2], map(_resolve, items[1::2]), strict=True))
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
        found = [_resolve(item) for item in self._stack[start + 1 :]]
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


def _resolve(value: Any) -> Any:
    """Return the element type that a name refers to, and any other value as it is."""
    if not isinstance(value, _Name):
        return value
    found = getattr(torch, value.name, None) if value.module == "torch" else None
    if not isinstance(found, torch.dtype):
        raise NoDataError(f"it refers to {'.'.join(value)}")
    return found
