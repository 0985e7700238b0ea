"""Findings about a torch DataLoader without timing it, for the log of a run."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

from input_rules.findings import Finding
from input_rules.input_export import InputProgram, Shard
from input_rules.rules.base import Context
from input_rules.torch.loader import noting_calls, pipeline_of
from input_rules.torch.rules import find

_NOT_COMPARED = "Whether the workers read different records shows cs_input_analyzer alone."


@dataclass(frozen=True)
class Inspection:
    """What was found.

    Attributes:
        findings: The gravest first.
        notes: What a reader must know beside, one sentence each.
    """

    findings: tuple[Finding, ...]
    notes: tuple[str, ...] = ()


def inspect(program: InputProgram, workers: int, first: Any = None) -> Inspection:
    """Make the input and look at it, without timing it.

    Args:
        program: Its input function.
        workers: Tasks that read it.
        first: The first batch, where it has been read already; else it is read here.
    """
    with program.role(Shard(1, 0)), noting_calls():
        loader = program.build(Shard(1, 0))
        if first is None:
            first = next(iter(loader), None)
    context = Context(workers=workers, cpus=len(os.sched_getaffinity(0)), seeded=program.seeded)
    return Inspection(find(pipeline_of(loader, first), context), (_NOT_COMPARED,) if workers > 1 else ())
