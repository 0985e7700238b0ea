"""The examination of a torch DataLoader."""

from __future__ import annotations

from collections.abc import Callable
from itertools import islice
from typing import Any

from input_analyzer.examine import Examination
from input_analyzer.findings import find
from input_analyzer.findings.context import Context
from input_analyzer.handover import InputProgram, Shard
from input_analyzer.measure import node
from input_analyzer.measure.link import Order
from input_analyzer.torch.loader import parts_of, pipeline_of
from input_analyzer.torch.timing import time_stages

_COMPARED, _COMPARED_RECORDS = 64, 4


def examine(program: InputProgram, order: Order, say: Callable[[str], None]) -> Examination:
    """Reads the parts of the loader, times them, applies all rules."""
    loader = program.build(Shard(1, 0))
    pipeline = pipeline_of(loader, _first(loader))
    times = time_stages(loader, pipeline, order.stage_seconds, say) if order.stage_seconds > 0 else ()
    sharded = _differ(program.build(Shard(2, 0)), program.build(Shard(2, 1)))
    context = Context(
        sharded=sharded,
        memory_bytes=node.memory().available_bytes,
        times={time.stage: time for time in times},
    )
    return Examination(pipeline, times, find(pipeline, context), sharded)


def _first(loader: Any) -> Any:
    return next(iter(loader), None)


def _differ(first: Any, second: Any) -> bool | None:
    """Whether two workers read other records; None where their order is random or has no indices."""
    seen = []
    for loader in (first, second):
        if parts_of(loader).iterable:
            return None
        order = getattr(loader.batch_sampler, "sampler", None) or loader.sampler
        if pipeline_of(loader).stages[0].attributes["random"] and not hasattr(order, "rank"):
            return None
        indices = list(islice(iter(order), _COMPARED))
        records = [_content(loader.dataset[index]) for index in indices[:_COMPARED_RECORDS]]
        seen.append((len(loader.dataset), indices, records))
    return bool(seen[0] != seen[1])


def _content(record: Any) -> list[Any]:
    """The values in a record, to be compared."""
    from torch.utils import _pytree

    leaves, _ = _pytree.tree_flatten(record)
    return [leaf.tolist() if hasattr(leaf, "tolist") else repr(leaf) for leaf in leaves]
