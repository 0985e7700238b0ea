"""Matching: from a step to its kernel graph, and the names of its kernels."""

from __future__ import annotations

import re
from collections.abc import Sequence

from xdsl.dialects.builtin import ModuleOp

from cgc.cirh import ops
from cgc.cirh.base import mnemonic
from cgc.errors import KernelGraphError
from cgc.kernels.assignment import Assignment, Group, Naming
from cgc.kernels.families import RULES
from cgc.kernels.families.grouping import generate_all
from cgc.kernels.families.scalars import CONTROL
from cgc.kernels.generated import GeneratedKernel
from cgc.kernels.graph import Edge, Kernel, KernelGraph
from cgc.kernels.program import FREE, RELABELS, Program, StepPart, elements
from cgc.kernels.sizing import (
    edge_values,
    gradient_bytes,
    parameters,
    resident_bytes,
    samples_in_flight,
    update_bytes,
)


def match_kernels(module: ModuleOp, part: StepPart | None = None) -> KernelGraph:
    """Assign every op of a step to exactly one kernel.

    Args:
        module: a verified module with one function `@graph`.
        part: context of a module that is a part of a step.

    Returns:
        Kernels in data-flow order (by their first op), with the streams between them.

    Raises:
        InvalidModuleError: the module has no function `@graph`.
        KernelGraphError: an op of another dialect, or a step without ops.
    """
    program = Program(module, part)
    if not program.ops:
        raise KernelGraphError(
            "func.func @graph has no ops, expected at least one: the step returns its arguments as they are"
        )
    assignment = Assignment(program)
    for match in RULES:
        match(assignment)
    # Rules open kernels family by family.
    assignment.groups.sort(key=lambda group: _first_op(program, group))
    # Must precede the parameters: loop nests decide the families of generated kernels.
    generated = generate_all(assignment)
    values = edge_values(assignment)
    in_flight = samples_in_flight(assignment, values)
    names = kernel_names(program, assignment.groups)
    kernels = [
        _kernel(assignment, group, name, samples, generated.get(group.anchor))
        for group, name, samples in zip(assignment.groups, names, in_flight, strict=True)
    ]
    edges = [
        Edge(names[a], names[b], -(-sum(elements(value) for value in found) // program.batch_size))
        for (a, b), found in sorted(values.items())
    ]
    return KernelGraph(tuple(kernels), tuple(edges), program.batch_size, program.input_bytes_per_sample)


def _first_op(program: Program, group: Group) -> int:
    """Return the position of a kernel's first op that works on samples, else of its first op."""
    working = [index for index in group.members if program.kinds[index] is not ops.ConstOp]
    return min([index for index in working if program.is_per_sample(index)] or working or group.members)


def _kernel(
    assignment: Assignment, group: Group, name: str, in_flight: float, nests: GeneratedKernel | None
) -> Kernel:
    """Return the plain data of a group."""
    program = assignment.program
    members = tuple(sorted(group.members))
    return Kernel(
        name=name,
        family=group.family.name,
        parameters=parameters(assignment, group),
        ops=tuple(program.ops[index].name for index in members),
        op_indices=members,
        source=_source(program, group),
        generated=group.generated,
        loops=nests,
        samples_in_flight=in_flight,
        gradient_bytes=gradient_bytes(assignment, group),
        optimizer_share=_optimizer_share(assignment, group, nests),
    )


def _optimizer_share(assignment: Assignment, group: Group, nests: GeneratedKernel | None) -> float:
    """Return the share of a kernel's resident data that only the weight update reads."""
    if nests is None:
        held = resident_bytes(assignment, group)
    else:
        values = nests.program.values
        held = sum(values[number].elements * values[number].element_bytes for number in nests.resident)
    return min(1.0, update_bytes(assignment, group) / held) if held else 0.0


def _source(program: Program, group: Group) -> str | None:
    """Return the source line of the anchor, else of the first op that has one."""
    if group.family is CONTROL:  # its scalars come from all over the program
        return None
    lines = [program.ops[index].source for index in (group.anchor, *sorted(group.members))]
    return next((line for line in lines if line is not None), None)


def kernel_names(program: Program, groups: Sequence[Group]) -> list[str]:
    """Return a unique name for each kernel: its layer's path, or its family and a number."""
    base_names = [_base_name(program, group) for group in groups]
    used: set[str] = set()
    names = []
    for name, numbered in base_names:
        first = f"{name}1" if numbered else name
        candidate, count = first, 1
        while candidate in used:
            count += 1
            candidate = f"{name}{count}" if numbered else f"{name}_{count}"
        used.add(candidate)
        names.append(candidate)
    return names


def _base_name(program: Program, group: Group) -> tuple[str, bool]:
    """Return the base of a name, and whether it needs a number."""
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
