"""Find what could be better in a torch DataLoader without timing it, for the log of a run."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

from input_rules.findings import Finding
from input_rules.input_export import InputProgram, Shard
from input_rules.rules.base import Context
from input_rules.torch.loader import read_pipeline, record_calls
from input_rules.torch.rules import find

_NOT_COMPARED = "Run cs_input_analyzer to check that the workers read different records."


@dataclass(frozen=True)
class Inspection:
    """The findings about a loader.

    Attributes:
        findings: Most severe first.
        notes: Remarks for readers, one sentence each.
    """

    findings: tuple[Finding, ...]
    notes: tuple[str, ...] = ()


def inspect(program: InputProgram, workers: int, first: Any = None) -> Inspection:
    """Build the input and apply all rules, without timing it.

    Args:
        program: Its input function.
        workers: Tasks that read it.
        first: The first batch, if it has been read already; otherwise it is read here.
    """
    with program.role(Shard(1, 0)), record_calls():
        loader = program.build(Shard(1, 0))
        if first is None:
            first = next(iter(loader), None)
    context = Context(workers=workers, cpus=len(os.sched_getaffinity(0)), seeded=program.seeded)
    return Inspection(find(read_pipeline(loader, first), context), (_NOT_COMPARED,) if workers > 1 else ())
