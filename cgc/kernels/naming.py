"""Dotted, unique names of kernels from the layers of their ops."""

from __future__ import annotations

import re
from collections.abc import Sequence

from cgc.cirh.base import mnemonic
from cgc.kernels.assignment import Group
from cgc.kernels.family import Naming
from cgc.kernels.program import FREE, RELABELS, Program


def kernel_names(program: Program, groups: Sequence[Group]) -> list[str]:
    """A name for each kernel: its layer's path, or its family and a number."""
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
    path = program.ops[group.anchor].layer
    if path:
        return ".".join(re.sub(r"[^\w-]", "_", layer) for layer in path), False
    working = {program.kinds[index] for index in group.members} - FREE - RELABELS
    if group.generated and len(working) == 1:
        return mnemonic(working.pop()).lower(), True
    return label, True
