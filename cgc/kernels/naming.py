"""Dotted, unique names of kernels from the framework's node names."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TypeAlias

from cgc.cirh.base import mnemonic
from cgc.cirh.ops import ops_where
from cgc.cirh.softmax import CrossEntropyOp
from cgc.kernels.assignment import Group
from cgc.kernels.family import Naming
from cgc.kernels.program import FREE, RELABELS, Program

_INNER = frozenset(
    {"moments", "batchnorm", "Tensordot", "xentropy", "random_uniform"}
    | {mnemonic(op) for op in ops_where(lambda op: issubclass(op, CrossEntropyOp))}
)
"""Name scopes that frameworks open inside a layer."""

LayerPath: TypeAlias = tuple[str, ...] | None
"""Name scopes of a layer from the outermost in; None where an op has no name."""


def layer_path(program: Program, index: int) -> LayerPath:
    """Name scopes of the layer that an op belongs to, also for its gradient ops; None without a node name.

    "gradients/ln/moments/mean_grad/Mul" and "ln/batchnorm/sub" are both of ("ln",).
    """
    name = program.ops[index].node_name
    if name is None:
        return None
    scopes = name.split("/")[:-1]
    if scopes and scopes[0].startswith(("gradients", "gradient_tape")):
        scopes = scopes[1:]
    while scopes and (scopes[-1].endswith("_grad") or scopes[-1] in _INNER):
        scopes.pop()
    distinct = [
        scope for position, scope in enumerate(scopes) if position == 0 or scope != scopes[position - 1]
    ]
    return tuple(distinct)


def kernel_names(program: Program, groups: Sequence[Group]) -> list[str]:
    """A name for each kernel: its layer's name scopes, or its family and a number."""
    wanted = [_wanted(program, group) for group in groups]
    taken: set[str] = set()
    names = []
    for name, numbered in wanted:
        first = f"{name}1" if numbered else name
        candidate, count = first, 1
        while candidate in taken:
            count += 1
            candidate = f"{name}{count}" if numbered else f"{name}_{count}"
        taken.add(candidate)
        names.append(candidate)
    return names


def _wanted(program: Program, group: Group) -> tuple[str, bool]:
    """The base of a name, and whether it is a family's name that wants a number."""
    label = group.family.label(program, group)
    if group.family.naming is not Naming.BY_LAYER:
        return label, group.family.naming is Naming.NUMBERED
    path = layer_path(program, group.anchor)
    if path:
        return ".".join(re.sub(r"[^\w-]", "_", scope) for scope in path), False
    working = {program.kinds[index] for index in group.members} - FREE - RELABELS
    if group.generated and len(working) == 1:
        return mnemonic(working.pop()).lower(), True
    return label, True
