"""The steps of a session on the chief, where a step is what the program does between two batches.

The body of the loop is recorded for every step whose outputs the program fetches: all steps, or those that
`cm.set_run_config` selects, between which steps run without the body. On the device it must do the same each
time. Python code may depend on the number of the step: the step closures of this recording run, with its
arguments. A value may be read as soon as the state is updated, which ends the step.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial, wraps
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

import numpy as np
import torch
from torch.utils import _pytree as pytree

from cstorch.core import modes
from cstorch.errors import ClosureError, SessionError
from cstorch.input.loader import InputLoader
from cstorch.iterations import checkpoint_steps_of
from cstorch.loop.execution import ClosureCall, RecordedStep, name_loss
from cstorch.loop.on_cs import Loop, call_closure, enter_loop
from cstorch.program import Program, configuration
from cstorch.tracing.device import DeviceTensor, value_of
from cstorch.v1.session.environment import RunConfig, state

if TYPE_CHECKING:
    from cgc.importers.aten import Graph, Node

KEPT_ELEMENTS = 1 << 16
"""Elements of the largest tensor that a program can read after its step without a step closure."""

_REMEDY = (
    "the step is compiled once, from the first iteration. Numbers that change belong in tensors: learning "
    "rates in a schedule of cbtorch.optim.lr_scheduler; other differences between steps belong in a step "
    "closure"
)

P = ParamSpec("P")

T = TypeVar("T")


class Steps:
    """The steps over one input.

    Args:
        loader: The input.
        mode: "train" or "eval"; None if the program has not given it.
        steps: Number of steps, unless `set_run_config` gives it.

    Attributes:
        recording: A step is being recorded.
    """

    def __init__(self, loader: InputLoader, mode: str | None, steps: int) -> None:
        self.recording = False
        self._mode = mode
        self._run_config: RunConfig | None = None
        self._loop = Loop(loader, steps, checkpoint_steps=1)
        self._loop.can_extend = True  # each further epoch of the program's own loop adds steps
        self._batch_size = loader.batch_size
        self._nodes = 0
        self._numbers: list[Any] = []
        self._stack = ExitStack()
        self._stack.enter_context(enter_loop(self._loop))
        state().run_step = 0

    @property
    def ended(self) -> bool:
        """True if no step is left, or nothing runs because the program is only compiled."""
        config = self._run_config
        return self._loop.ended or (config is not None and self._loop.completed >= config.total_steps)

    @property
    def follows_loader(self) -> bool:
        """True if an epoch of the loader ends the program's loop, and not the last step."""
        return self._run_config is None

    @property
    def compiled(self) -> bool:
        """True if a step was recorded and compiled."""
        return self._loop.step is not None

    def add(self, steps: int) -> None:
        """Add the steps of a further epoch if the program's own loop runs them."""
        if self._run_config is not None:
            return
        self._loop.steps += steps

    def begin(self) -> Any:
        """Begin to record a step, which `finish` ends, and return its batch."""
        for model in Program.current().models:
            for parameter in model.parameters():
                if parameter.grad is not None:  # recorded in the last step, with values that are gone
                    parameter.grad = DeviceTensor(parameter)
        self._numbers = _numbers_of_groups()
        self._loop.begin_recording()
        self.recording = True
        self.number_step()
        return pytree.tree_map_only(DeviceTensor, _widen, self._loop.batch)

    def number_step(self) -> None:
        """Set the number of the recorded step: the next one whose outputs the program fetches."""
        config = state().run_config if self._loop.step is None else self._run_config
        done = self._loop.completed
        state().run_step = done + 1 if config is None else config.next_fetch(done)

    def add_closure(self, call: ClosureCall) -> None:
        """Add a closure that runs after the step."""
        self._loop.add_closure(call)

    def finish(self, read: Sequence[DeviceTensor] = ()) -> None:
        """End the step that is being recorded, if any, and run it.

        Args:
            read: Tensors whose values the program reads.

        Raises:
            SessionError: The body of the loop did something else than in its first iteration.
            cgc.errors.CompileError: The step cannot be compiled.
            cs_system.errors.CsSystemError: The system is unavailable, busy, or failed; a worker was lost.
        """
        if not self.recording:
            return
        try:
            self._end_recording(read)
        except BaseException as error:
            self.abandon(error)
            raise

    def value(self, tensor: DeviceTensor) -> torch.Tensor | None:
        """Return a value that the program reads; None if it is unavailable."""
        if self.recording:
            if self._mode == modes.TRAIN and not self._loop.tracing.changes_parameters():
                return None
            self.finish((tensor,))
        try:
            return self._loop.value_of(tensor)
        except ClosureError:
            return None

    def close(self) -> None:
        """Run the step that is being recorded, and end the loop; the state is fetched to this CPU."""
        self.finish()
        state().run_config = None
        self._stack.close()

    def abandon(self, error: BaseException) -> None:
        """End the loop after an error."""
        self.recording = False
        stack, self._stack = self._stack, ExitStack()
        self._loop.abandon(error)
        stack.__exit__(type(error), error, error.__traceback__)

    def _end_recording(self, read: Sequence[DeviceTensor]) -> None:
        first = self._loop.step
        if first is None:
            self._nodes = len(self._loop.tracing.recording.graph.nodes)
        kept = self._step_outputs(read) if first is None else ()
        self.recording = False
        step = self._loop.end_recording(kept)
        self._check_numbers()
        if first is None:
            self._check_mode(step)
            name_loss(step)
            self._configure()
            self._loop.begin(step)
            state().rate_tracker.reset()
            count_figures(self._loop.figures())
        else:
            difference = describe_difference(first.traced.graph, step.traced.graph, self._nodes)
            if difference is not None:
                raise SessionError(difference)
        if not self._loop.ended:
            self._run(step.closures)

    def _configure(self) -> None:
        """Take the run configuration, which programs give before the loop or in its first iteration."""
        config = self._run_config = state().run_config
        if config is not None:
            self._loop.can_extend = False
            self._loop.steps, self._loop.checkpoints = (
                config.total_steps,
                checkpoint_steps_of(config.state_steps),
            )

    def _run(self, closures: Sequence[ClosureCall]) -> None:
        """Run the steps up to the one that was recorded, then its closures."""
        here = state()
        while self._loop.completed < here.run_step:
            self._loop.take()
            here.rate_tracker.add(self._batch_size)
        self._call(closures)
        self._loop.serve_requests()

    def _call(self, closures: Sequence[ClosureCall]) -> None:
        """Call step closures with the values of the last step."""
        here = state()
        here.is_inside_execution_loop = True
        try:
            for call in closures:
                args, kwargs = call.arguments
                call_closure(self._loop, call.function, *args, **kwargs)
        finally:
            here.is_inside_execution_loop = False

    def _check_numbers(self) -> None:
        if self._numbers != _numbers_of_groups():
            raise SessionError(
                "a number in the groups of an optimizer, such as lr, changes in the body of the loop, where "
                "the compiled step would keep the first one; take a schedule of cbtorch.optim.lr_scheduler"
            )

    def _check_mode(self, step: RecordedStep) -> None:
        if self._mode is None or configuration().compile_only or configuration().validate_only:
            return
        if self._mode == modes.TRAIN and step.mode != "train":
            raise SessionError(
                "the step of a session with mode='train' changes no parameter, expected an update: call "
                "optimizer.step() in it, or give mode='eval'"
            )
        if self._mode != modes.TRAIN and step.mode == "train":
            raise SessionError(
                f"the step of a session with mode='{self._mode}' changes the model, expected that it stays: "
                "call model.eval() before it, and optimizer.step() only with mode='train'"
            )

    def _step_outputs(self, read: Sequence[DeviceTensor]) -> list[DeviceTensor]:
        """Return the loss and the tensors still in use: outputs of the step besides closures' arguments."""
        own = {id(x) for model in Program.current().models for x in (*model.parameters(), *model.buffers())}
        own |= {id(x.grad) for model in Program.current().models for x in model.parameters()}
        recording = self._loop.tracing.recording
        own |= {id(x) for x in (*recording.unnamed, *pytree.tree_leaves(self._loop.batch))}
        held = [x for x in _recorded_tensors(recording) if id(x) not in own]
        losses = [x for x in recording.roots[:1] if not x.shape]
        return [*losses, *read, *held]


def _recorded_tensors(recording: Any) -> Iterator[DeviceTensor]:
    """Yield the small tensors of a recording that are still in use."""
    for x in {id(x): x for made in recording.live if (x := made()) is not None}.values():
        small = type(x) is DeviceTensor and x.elem is not None and x.numel() <= KEPT_ELEMENTS
        if small and value_of(x).recording is recording:
            yield x


def count_figures(figures: Mapping[str, float | None]) -> None:
    """Record figures of a run by the names of the original."""
    for name, counter, factor in (
        ("compile_s", "CerebrasCompileTimeMs", 1e3),
        ("programming_s", "CerebrasProgrammingTimeNs", 1e9),
        ("estimated_samples_per_s", "CerebrasSystemEstSamples", 1.0),
    ):
        value = figures.get(name)
        if value is not None:
            state().counters[counter] = value * factor


def _numbers_of_groups() -> list[Any]:
    """Return the Python numbers in the groups of the optimizers."""
    groups = [group for optimizer in state().optimizers for group in optimizer.param_groups]
    return [(name, x) for group in groups for name, x in group.items() if isinstance(x, int | float | tuple)]


def _widen(tensor: DeviceTensor) -> torch.Tensor:
    """Return a 16-bit tensor of a batch as float32 if a model has float32 parameters."""
    # Programs of the original give 16-bit inputs to such models, and the compiler chooses the precision.
    if tensor.dtype not in (torch.float16, torch.bfloat16):
        return tensor
    parameters = [p for model in Program.current().models for p in model.parameters()]
    return tensor.float() if any(p.dtype == torch.float32 for p in parameters) else tensor


@dataclass
class _EnteredSteps:
    """The steps that the program is in, innermost last."""

    stack: list[Steps] = field(default_factory=list)


def current_steps() -> Steps | None:
    """Return the innermost steps that the program is in."""
    entered = Program.current().part(_EnteredSteps).stack
    return entered[-1] if entered else None


def recording_steps() -> Steps | None:
    """Return the innermost steps if one is being recorded."""
    steps = current_steps()
    return steps if steps is not None and steps.recording else None


def enter(steps: Steps) -> None:
    """Make these the current steps until `leave`."""
    program = Program.current()
    program.part(_EnteredSteps).stack.append(steps)
    program.value_readers.append(steps.value)


def leave(steps: Steps) -> None:
    """End the effect of `enter`."""
    program = Program.current()
    entered = program.part(_EnteredSteps).stack
    if steps in entered:
        program.value_readers.pop(entered.index(steps))
        entered.remove(steps)


def describe_difference(first: Graph, again: Graph, nodes: int) -> str | None:
    """Describe how a later recording of a step differs from the first one; None if it does not.

    Args:
        first: Graph of the first iteration.
        again: Graph of a later iteration.
        nodes: Number of nodes in the first graph that come from the program.
    """
    expected = first.nodes[:nodes]
    for old, new in zip(expected, again.nodes, strict=False):
        if (old.op, old.arguments, old.results) != (new.op, new.arguments, new.results):
            return f"{_line(new)}: {_describe(new)}, but the first iteration has {_describe(old)}; {_REMEDY}"
    if nodes != len(again.nodes):
        longer = max(expected, again.nodes, key=len)
        extra = longer[min(nodes, len(again.nodes))]
        which = "this iteration only" if longer is again.nodes else "the first iteration only"
        return f"{_line(extra)}: {_describe(extra)} is in {which}; {_REMEDY}"
    for key, constant in first.constants.items():
        if not np.array_equal(constant.array, again.constants[key].array):
            user = next((node for node in again.nodes if _takes(node, key)), None)
            where = "line unknown" if user is None else _line(user)
            return f"{where}: a tensor of this CPU has other elements than in the first iteration; {_REMEDY}"
    if first.updates != again.updates:
        return f"the body of the loop writes other state than in its first iteration; {_REMEDY}"
    return None


def _describe(node: Node) -> str:
    numbers = [f"{name}={value}" for name, value in node.arguments.items() if isinstance(value, int | float)]
    return f"{node.op}({', '.join(numbers)})"


def _line(node: Node) -> str:
    return node.source or "line unknown"


def _takes(node: Node, key: int) -> bool:
    return any(getattr(value, "id", None) == key for value in node.arguments.values())


def step_closure(function: Callable[P, T]) -> Callable[P, T | None]:
    """Make a function or method run after the step in which it is called, with values for tensors.

    The call in the step returns None. If no step is being recorded, as on this CPU or within another closure,
    the function is called immediately, except that the calls of a program that drives the appliance are
    queued until the step is compiled (`run_queued_closures`).
    """

    @wraps(function)
    def closure(*args: P.args, **kwargs: P.kwargs) -> T | None:
        steps = recording_steps()
        if steps is not None:
            steps.add_closure(ClosureCall(function, (args, kwargs)))
        elif state().queues_closures:
            state().queued_closures.append(partial(function, *args, **kwargs))
        else:
            return function(*args, **kwargs)
        return None

    return closure


def run_queued_closures() -> None:
    """Run the queued calls of step closures, in their order."""
    here = state()
    here.queues_closures = False
    calls, here.queued_closures = here.queued_closures, []
    for call in calls:
        call()
