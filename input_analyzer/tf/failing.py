"""The stage that failed: an error of a tf.data pipeline does not say which of the user's lines made it.

Stages are read from the source on, each with those before it, until one raises the same error.
"""

from __future__ import annotations

import linecache
import time
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from input_analyzer.tf.counting import initializers
from input_analyzer.tf.eager_graph import in_graph
from input_analyzer.tf.rebuild import as_dataset, rebuild, structure, without_buffers
from input_rules.handover import InputProgram, Shard
from input_rules.pipeline import Stage
from input_rules.tf.graph import Traced, called, trace

LONGEST_S = 5.0
"""A pipeline that does not fail again in this time is not searched."""
_SHORTEST_S = 0.5
_MORE = 3
"""A stage alone may take so much longer than the whole pipeline to get to what fails."""


def place_of(program: InputProgram, shard: Shard, error: BaseException, say: Callable[[str], None]) -> str:
    """Says which stage failed and shows its line; "" where that is not known.

    Args:
        program: the input.
        shard: what was read of it.
        error: what reading it has raised.
        say: told what is being done.
    """
    if not isinstance(error, tf.errors.OpError) or isinstance(error, tf.errors.ResourceExhaustedError):
        return ""  # what has filled the memory once is not read again
    traced = trace(lambda: program.build(shard), program.seed, in_graph=in_graph if program.eager else called)
    failed = _failing(traced, type(error), say)
    if failed is None or failed.source is None:
        return ""
    file, _, line = failed.source.rpartition(":")
    return f"It failed in {failed.op}() at {failed.source}:\n    {linecache.getline(file, int(line)).strip()}"


def _failing(traced: Traced, kind: type[BaseException], say: Callable[[str], None]) -> Stage | None:
    """The first stage that raises such an error."""
    stages = traced.pipeline.stages
    with tf.compat.v1.Session(graph=traced.graph) as session:
        session.run(initializers(traced.graph))

        def fails(stage: Stage, seconds: float) -> bool:
            say("looking for the stage that failed")
            return _fails(session, traced.nodes[stage.name][-1], kind, seconds)

        began = time.monotonic()
        if not fails(stages[-1], LONGEST_S):
            return None
        limit = max(_SHORTEST_S, _MORE * (time.monotonic() - began))
        return next((stage for stage in stages[:-1] if fails(stage, limit)), stages[-1])


def _fails(session: Any, node: Any, kind: type[BaseException], seconds: float) -> bool:
    """Whether reading a dataset raises such an error in so many seconds."""
    with session.graph.as_default():
        dataset = as_dataset(rebuild(node, without_buffers), structure(node))
        iterator = tf.compat.v1.data.make_initializable_iterator(dataset)
        drawn = tf.group(tf.nest.flatten(iterator.get_next()))
    end = time.monotonic() + seconds
    try:
        session.run(iterator.initializer)
        draw = session.make_callable(drawn)
        while time.monotonic() < end:
            draw()
    except tf.errors.OutOfRangeError:
        return False
    except kind:
        return True
    return False
