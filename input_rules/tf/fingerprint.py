"""Whether two graphs of an input function read the same data."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

MAPPED_FILE = "memory_region_name"
"""Attribute of an operation with the path of a file, which is named after what is in it."""

# Names differ from one trace to the next; they say nothing about the data.
_NAMES = frozenset(
    {"token", "container", "shared_name", "debug_name", "metadata", "stateful_state", "f_name"}
)


def fingerprint(graph: Any) -> str:
    """A digest of all operations and constants of a graph and of its functions, without any names."""
    definition = graph.as_graph_def()
    parts = [_digest(definition.node)]
    # The numbers in names of functions count up, so the order of the library is no order.
    parts += sorted(_digest(function.node_def) for function in definition.library.function)
    return hashlib.sha256("".join(parts).encode()).hexdigest()


def _digest(nodes: Iterable[Any]) -> str:
    """A digest of operations (NodeDef), without any names and what they read."""
    digest = hashlib.sha256()
    # Nodes of functions come in an order that differs from one trace to the next.
    for text in sorted(map(_node, nodes)):
        digest.update(text)
    return digest.hexdigest()


def _node(node: Any) -> bytes:
    kept = sorted((name, value) for name, value in node.attr.items() if _says_something(name, value))
    described = b"".join(name.encode() + _value(name, value) for name, value in kept)
    return str(node.op).encode() + b"\0" + hashlib.sha256(described).digest()


def _value(name: str, value: Any) -> bytes:
    if name == MAPPED_FILE:  # its folder is another one in every process
        return Path(value.s.decode()).name.encode()
    serialized: bytes = value.SerializeToString(deterministic=True)
    return serialized


def _says_something(name: str, value: Any) -> bool:
    is_function = value.HasField("func") or bool(value.list.func)
    return not (is_function or name in _NAMES or name.startswith("_"))
