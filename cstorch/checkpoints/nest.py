"""Nests of dicts, lists and tuples as flat entries and a JSON text, in the form of PyTorch's tree specs.

Sets and `torch.Size` are nodes, too; what has no node, such as a frozenset, is a leaf.
"""

from __future__ import annotations

import json
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch

from cstorch.errors import CheckpointError

Leaf = Callable[[str], Any]
"""Gives the leaf with a dotted key."""

_PROTOCOL = 1
_LEAF: dict[str, Any] = {"type": None, "context": None, "children_spec": []}
_DICTS: dict[str, Callable[[Any], Any]] = {
    "builtins.dict": dict,
    "collections.OrderedDict": OrderedDict,
    "collections.defaultdict": dict,  # what a missing key becomes is a function
}
_LISTS: dict[str, Callable[[Any], Any]] = {
    "builtins.list": list,
    "builtins.tuple": tuple,
    "collections.namedtuple": tuple,  # its class belongs to the program that wrote it
    "collections.deque": deque,
    "builtins.set": set,
    "torch.Size": torch.Size,
}


def leaves(nest: Any, prefix: tuple[str, ...] = ()) -> Iterator[tuple[str, Any]]:
    """Dotted keys and leaves of a nest, in order."""
    children = _children(nest)
    if children is None:
        yield ".".join(prefix), nest
        return
    for key, child in children:
        yield from leaves(child, (*prefix, str(key)))


def to_text(nest: Any) -> str:
    """Structure of a nest: JSON of a skeleton with "*" for leaves, and of the text of a tree spec."""
    return json.dumps([_skeleton(nest), json.dumps([_PROTOCOL, _spec(nest)])])


def leaf_spec(key: str) -> list[Any]:
    """What `to_text` says of a dict with one leaf, before it is JSON."""
    return [{key: "*"}, json.dumps([_PROTOCOL, _spec({key: None})])]


def from_text(text: str, leaf: Leaf) -> Any:
    """The nest that a text describes.

    Raises:
        CheckpointError: a container is of a kind that is not known.
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
        if isinstance(context, str):  # an object itself where recent releases of PyTorch write it
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
