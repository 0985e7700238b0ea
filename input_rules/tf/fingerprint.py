"""Whether two graphs of an input function read the same data."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable
from typing import Any

# Names differ from one trace to the next; they say nothing about the data.
_NAMES = frozenset(
    {"token", "container", "shared_name", "debug_name", "metadata", "stateful_state", "f_name"}
)


def fingerprint(graph: Any) -> str:
    """A digest of all operations and constants of a graph and of its functions, without any names."""
    definition = graph.as_graph_def()
    parts = [digest_of(definition.node)]
    # The numbers in names of functions count up, so the order of the library is no order.
    parts += sorted(digest_of(function.node_def) for function in definition.library.function)
    return hashlib.sha256("".join(parts).encode()).hexdigest()


def digest_of(nodes: Iterable[Any], without: Collection[str] = ()) -> str:
    """A digest of operations, without any names.

    Args:
        nodes: NodeDef of each; what they read is not in it.
        without: Names of attributes that are left out.
    """
    digest = hashlib.sha256()
    # Nodes of functions come in an order that differs from one trace to the next.
    for text in sorted(_node(node, without) for node in nodes):
        digest.update(text)
    return digest.hexdigest()


def _node(node: Any, without: Collection[str]) -> bytes:
    kept = sorted(
        (name, value)
        for name, value in node.attr.items()
        if name not in without and _says_something(name, value)
    )
    described = b"".join(name.encode() + value.SerializeToString(deterministic=True) for name, value in kept)
    return str(node.op).encode() + b"\0" + hashlib.sha256(described).digest()


def _says_something(name: str, value: Any) -> bool:
    is_function = value.HasField("func") or bool(value.list.func)
    return not (is_function or name in _NAMES or name.startswith("_"))
