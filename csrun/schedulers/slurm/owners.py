"""The nodes that hold the CS system: whether one of them can be used. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from csrun.schedulers.slurm.client import Node


def owners_out_of_use(nodes: Iterable[Node], resource: str, node_name: str = "") -> str:
    """What is wrong with the nodes that hold the CS system, where none of them can be used; else "".

    Args:
        nodes: of the cluster.
        resource: the generic resource that stands for the system; "" for none.
        node_name: the one that owns it, where the site says so.
    """
    name = resource.partition(":")[0]
    owners = [
        node for node in nodes if (node.name == node_name if node_name else name and amount_of(node, name))
    ]
    if not owners or any(node.usable for node in owners):
        return ""
    return "; ".join(dict.fromkeys(node.trouble for node in owners))


def amount_of(node: Node, name: str) -> int:
    """How many of a generic resource a node has."""
    amounts = [item.split(":") for item in node.resources.split(",") if item.partition(":")[0] == name]
    return sum(int(parts[-1]) if parts[-1].isdigit() else 1 for parts in amounts)
