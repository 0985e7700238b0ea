"""The state of this process: what a program has made for its session, and how far that has come."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from math import gcd
from typing import Any

import torch
from torch import nn

from cs_toolkit.messages import Message
from cstorch.compatibility import announce_unused
from cstorch.utils.nest import named_leaves
from cstorch.utils.rates import RateTracker

log = logging.getLogger("cstorch")


@dataclass(frozen=True)
class RunConfig:
    """Steps of a session, and those whose outputs the program gets: for these the body of its loop runs.

    Attributes:
        total_steps: Steps of this run.
        checkpoint_steps: Programs write checkpoints behind every so many; 0 for the last one alone.
        fetch_steps: Programs look at values behind every so many steps; 0 for the last one alone.
    """

    total_steps: int
    checkpoint_steps: int
    fetch_steps: int

    @property
    def state_steps(self) -> int:
        """The state can be read behind every so many steps, among them all where step closures run."""
        return gcd(self.checkpoint_steps, self.fetch_steps)

    def next_fetch(self, step: int) -> int:
        """Return the first step after `step` whose outputs the program gets.

        These are the multiples of `fetch_steps`, those of `checkpoint_steps`, and the last step.
        """
        multiples = (step - step % n + n for n in (self.fetch_steps, self.checkpoint_steps) if n)
        return min((self.total_steps, *multiples))


class Tracker:
    """Logs, at the level of debugging, how long parts of a program take."""

    def __init__(self) -> None:
        self._started: dict[str, float] = {}

    def start(self, name: str) -> None:
        """Begin a part."""
        self._started[name] = time.monotonic()

    def stop(self, name: str) -> None:
        """End a part that has begun."""
        began = self._started.pop(name, None)
        if began is not None:
            log.debug("%s took %.3f s", name, time.monotonic() - began)

    @contextmanager
    def entry(self, name: str) -> Iterator[None]:
        """The body is a part."""
        self.start(name)
        try:
            yield
        finally:
            self.stop(name)


@dataclass
class SessionState:
    """What programs find in `state()`.

    Attributes:
        full_config: options of the original compiler; kept for the program to read, without effect here.
        rate_tracker: counts the samples of the steps that were done, since the system was programmed.
        modules: models that were passed to `module`.
        optimizers: those that were passed to `optimizer`.
        metrics: those that were registered.
        tracked: objects that were passed to `track_object`.
        outputs: tensors by name that the program gets of every step, see `track_object`.
        activation_callbacks: called behind each step whose outputs the appliance receives.
        queues_closures: calls of step closures wait until the step is compiled.
        queued_closures: calls that wait.
        scaler: the last `amp.GradScaler` that was made.
        scaler_state: what `amp.load_state_dict` was given before there was one.
        mixed_precision: activations are computed in 16 bits.
        is_inside_execution_loop: step closures are running behind a step.
        run_config: None where the program's own loop runs the steps.
        run_step: number of the step of this session whose body or step closures run; 0 before the first.
        counters: figures of the run by the names of the original.
        init_tracker: notes how long parts of the program take that it names.
        progress_tracker: None: progress is in the log.
    """

    full_config: Message = field(default_factory=Message)
    rate_tracker: RateTracker = field(default_factory=RateTracker)
    modules: list[nn.Module] = field(default_factory=list)
    optimizers: list[torch.optim.Optimizer] = field(default_factory=list)
    metrics: list[Any] = field(default_factory=list)
    tracked: list[Any] = field(default_factory=list)
    outputs: dict[str, Any] = field(default_factory=dict)
    scaler: Any = None
    scaler_state: dict[str, Any] | None = None
    mixed_precision: bool = False
    is_inside_execution_loop: bool = False
    run_config: RunConfig | None = None
    run_step: int = 0
    num_csx: int = 1
    counters: dict[str, float] = field(default_factory=dict)
    init_tracker: Tracker = field(default_factory=lambda: Tracker())
    progress_tracker: None = None
    activation_callbacks: list[Callable[[], Any]] = field(default_factory=list)
    queues_closures: bool = False
    queued_closures: list[Callable[[], Any]] = field(default_factory=list)

    def track_object(self, obj: Any, force: bool = False) -> Any:
        """Keeps an object with the session, so that it lives as long; returns it.

        Args:
            obj: anything.
            force: its tensors are outputs of the step, however large they are.
        """
        if all(obj is not kept for kept in self.tracked):
            self.tracked.append(obj)
        if force:
            self.outputs.update(
                {name: x for name, x in named_leaves(obj).items() if isinstance(x, torch.Tensor)}
            )
        return obj

    def register_metric(self, metric: Any) -> None:
        """Notes a metric of the program."""
        if all(metric is not kept for kept in self.metrics):
            self.metrics.append(metric)

    def set_num_csx(self, num_csx: int) -> None:
        """Notes for how many CS systems the program asks; it gets one."""
        announce_unused("set_num_csx()", {"num_csx": num_csx}, {"num_csx": 1})
        self.num_csx = num_csx

    def register_activation_callback(self, callback: Callable[[], Any]) -> None:
        """Calls a function behind each step whose outputs the appliance receives."""
        self.activation_callbacks.append(callback)

    def get_activation_for_output(self, tensor: torch.Tensor) -> torch.Tensor:
        """The value of a tensor behind the step that has computed it, on this CPU."""
        return tensor.cpu()


_state = SessionState()


def state() -> SessionState:
    """That of this process."""
    return _state
