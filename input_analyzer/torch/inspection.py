"""Findings about a torch DataLoader without timing it, for the log of a run."""

from __future__ import annotations

import os

from input_analyzer.torch.loader import pipeline_of
from input_analyzer.torch.origin import noting_calls
from input_analyzer.torch.rules import find
from input_rules.handover import InputProgram, Shard
from input_rules.inspection import Inspection
from input_rules.rules.context import Context

_NOT_COMPARED = "Whether the workers read different records shows cs_input_analyzer alone."


def inspect(program: InputProgram, workers: int) -> Inspection:
    """See `input_rules.inspection.inspect`."""
    with program.role(Shard(1, 0)), noting_calls():
        loader = program.build(Shard(1, 0))
        first = next(iter(loader), None)
    context = Context(workers=workers, cpus=len(os.sched_getaffinity(0)), seeded=program.seeded)
    return Inspection(find(pipeline_of(loader, first), context), (_NOT_COMPARED,) if workers > 1 else ())
