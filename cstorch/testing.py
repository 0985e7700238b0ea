"""For tests that run several programs in one process."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import Any

from cs_runtime import requeue, terminal
from cstorch import compiled, config, precision, start, step_count
from cstorch.backends import base_backend
from cstorch.metrics import Metric
from cstorch.tracing import state as tensor_state
from cstorch.v1.session import environment, rendezvous, session, state, steps


def forget() -> None:
    """As if this process had configured, compiled and computed nothing, in a session neither."""
    config._configured.clear()
    base_backend._made.clear()
    compiled.models.clear()
    compiled.cpu_models.clear()
    tensor_state._holders.clear()
    Metric.registry.clear()
    step_count.continue_at(0)
    start.checkpoint_requests.clear()
    requeue._calls.clear()
    precision.name_half_dtype("float16")
    precision.mix_precision(False)
    environment._on_cs[0] = False
    environment._environment.appliance = False
    session._last.clear()
    steps._current.clear()
    rendezvous._places.clear()
    for name in (*terminal.PACKAGES, "cstorch"):  # a runner sets them
        logging.getLogger(name).setLevel(logging.NOTSET)
    kept = state()
    vars(kept).update(vars(type(kept)()))


def values_by_step(events: Iterable[Any]) -> dict[int, float]:
    """Return the values of a scalar that `SummaryReader.read_scalar` has read."""
    return {event.step: event.value for event in events}
