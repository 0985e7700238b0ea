"""The steps of a session, on the chief: a step is what the program does between two batches.

The body of the loop is recorded for every step whose outputs the program gets, and must do on the device
what it did the first time. These are all steps, or those that `cm.set_run_config` names: then the steps
between them run without the body. Python in it may decide by the number of the step: step closures are those
of this body, with its arguments. A value may be read as soon as the state is updated, which ends the step.
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
"""The largest tensor whose value a program can read behind its step without a step closure."""


class Steps:
    """Steps over one input.

    Args:
        loader: The input.
        mode: "train" or "eval"; None where the program has not said it.
        steps: How many there are, where `set_run_config` does not say it.

    Attributes:
        recording: The program is in a step.
    """

    def __init__(self, loader: InputLoader, mode: str | None, steps: int) -> None:
        self.recording = False
        self._mode = mode
        self._run_config: RunConfig | None = None
        self._loop = Loop(loader, steps, checkpoint_steps=1)
        self._loop.can_extend = True  # with each further epoch of the program's own loop
        self._batch_size = loader.batch_size
        self._nodes = 0
        self._numbers: list[Any] = []
        self._stack = ExitStack()
        self._stack.enter_context(enter_loop(self._loop))
        state().run_step = 0

    @property
    def ended(self) -> bool:
        """No step is left, or nothing ran because the program is only compiled."""
        config = self._run_config
        return self._loop.ended or (config is not None and self._loop.completed >= config.total_steps)

    @property
    def follows_loader(self) -> bool:
        """An epoch of the loader ends a loop of the program; with `set_run_config` the last step does."""
        return self._run_config is None

    @property
    def compiled(self) -> bool:
        """Whether a step was recorded and has gone through the compiler."""
        return self._loop.step is not None

    def add(self, steps: int) -> None:
        """So many steps more, of a further epoch, where the program's own loop runs them."""
        if self._run_config is not None:
            return
        self._loop.steps += steps

    def begin(self) -> Any:
        """A batch; what the program does from here to `finish` is a step."""
        for model in Program.current().models:
            for parameter in model.parameters():
                if parameter.grad is not None:  # of the last step, whose values are gone
                    parameter.grad = DeviceTensor(parameter)
        self._numbers = _numbers_of_groups()
        self._loop.begin_recording()
        self.recording = True
        self.number_step()
        return pytree.tree_map_only(DeviceTensor, _widened, self._loop.batch)

    def number_step(self) -> None:
        """Set the number of the step that is recorded: the next one whose outputs the program gets."""
        config = state().run_config if self._loop.step is None else self._run_config
        done = self._loop.completed
        state().run_step = done + 1 if config is None else config.next_fetch(done)

    def add_closure(self, call: ClosureCall) -> None:
        """A closure that runs behind the step."""
        self._loop.add_closure(call)

    def finish(self, read: Sequence[DeviceTensor] = ()) -> None:
        """Ends the step that is recorded, if one is, and runs it.

        Args:
            read: tensors whose values the program asks for.

        Raises:
            SessionError: the body of the loop did something else than in its first turn.
            cgc.errors.CompileError: the step cannot be compiled.
            cs_system.errors.CsSystemError: the system is not there, busy, or failed; a worker was lost.
        """
        if not self.recording:
            return
        try:
            self._end_recording(read)
        except BaseException as error:
            self.abandon(error)
            raise

    def value(self, tensor: DeviceTensor) -> torch.Tensor | None:
        """A value that the program reads; None where it is not there."""
        if self.recording:
            if self._mode == modes.TRAIN and not self._loop.tracing.changes_parameters():
                return None
            self.finish((tensor,))
        try:
            return self._loop.value_of(tensor)
        except ClosureError:
            return None

    def close(self) -> None:
        """Runs the step that is recorded, and ends; the state comes to this CPU."""
        self.finish()
        state().run_config = None
        self._stack.close()

    def abandon(self, error: BaseException) -> None:
        """Ends after an error."""
        self.recording = False
        stack, self._stack = self._stack, ExitStack()
        self._loop.abandon(error)
        stack.__exit__(type(error), error, error.__traceback__)

    def _end_recording(self, read: Sequence[DeviceTensor]) -> None:
        first = self._loop.step
        if first is None:
            self._nodes = len(self._loop.tracing.recording.graph.nodes)
        kept = self._kept(read) if first is None else ()
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
            said = difference(first.traced.graph, step.traced.graph, self._nodes)
            if said is not None:
                raise SessionError(said)
        if not self._loop.ended:
            self._run(step.closures)

    def _configure(self) -> None:
        """Programs say what to run before the loop, or in the first turn of it."""
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

    def _kept(self, read: Sequence[DeviceTensor]) -> list[DeviceTensor]:
        """What the step puts out beside what closures get: the loss, and what the program still holds."""
        own = {id(x) for model in Program.current().models for x in (*model.parameters(), *model.buffers())}
        own |= {id(x.grad) for model in Program.current().models for x in model.parameters()}
        recording = self._loop.tracing.recording
        own |= {id(x) for x in (*recording.met, *pytree.tree_leaves(self._loop.batch))}
        held = [x for x in _recorded_tensors(recording) if id(x) not in own]
        losses = [x for x in recording.roots[:1] if not x.shape]
        return [*losses, *read, *held]


def _recorded_tensors(recording: Any) -> Iterator[DeviceTensor]:
    """Small tensors of a recording that are still in use."""
    for x in {id(x): x for made in recording.made if (x := made()) is not None}.values():
        small = type(x) is DeviceTensor and x.elem is not None and x.numel() <= KEPT_ELEMENTS
        if small and value_of(x).recording is recording:
            yield x


def count_figures(figures: Mapping[str, float | None]) -> None:
    """Notes figures of a run by the names of the original."""
    for name, counter, factor in (
        ("compile_s", "CerebrasCompileTimeMs", 1e3),
        ("programming_s", "CerebrasProgrammingTimeNs", 1e9),
        ("estimated_samples_per_s", "CerebrasSystemEstSamples", 1.0),
    ):
        value = figures.get(name)
        if value is not None:
            state().counters[counter] = value * factor


def _numbers_of_groups() -> list[Any]:
    """The Python numbers that the optimizers go by."""
    groups = [group for optimizer in state().optimizers for group in optimizer.param_groups]
    return [(name, x) for group in groups for name, x in group.items() if isinstance(x, int | float | tuple)]


def _widened(tensor: DeviceTensor) -> torch.Tensor:
    """A tensor of a batch as float32 where it has 16 bits and the models have not.

    Programs hand over 16-bit inputs for models whose parameters are float32; the compiler chooses what is
    computed in 16 bits.
    """
    if tensor.dtype not in (torch.float16, torch.bfloat16):
        return tensor
    parameters = [p for model in Program.current().models for p in model.parameters()]
    return tensor.float() if any(p.dtype == torch.float32 for p in parameters) else tensor


@dataclass
class _EnteredSteps:
    """The steps that the program is in, innermost last."""

    stack: list[Steps] = field(default_factory=list)


def current_steps() -> Steps | None:
    """The steps that this process is in."""
    entered = Program.current().part(_EnteredSteps).stack
    return entered[-1] if entered else None


def recording_steps() -> Steps | None:
    """Those whose step is being recorded now."""
    steps = current_steps()
    return steps if steps is not None and steps.recording else None


def enter(steps: Steps) -> None:
    """From here to `leave` these are the steps of this process."""
    program = Program.current()
    program.part(_EnteredSteps).stack.append(steps)
    program.value_readers.append(steps.value)


def leave(steps: Steps) -> None:
    """See `enter`."""
    program = Program.current()
    entered = program.part(_EnteredSteps).stack
    if steps in entered:
        program.value_readers.pop(entered.index(steps))
        entered.remove(steps)


_CURE = (
    "the step is compiled once, from the first turn. Numbers that change belong into tensors: learning rates "
    "into a schedule of cbtorch.optim.lr_scheduler; what differs between steps otherwise belongs into a step "
    "closure"
)


def difference(first: Graph, again: Graph, nodes: int) -> str | None:
    """What a later recording of a step does otherwise than the first one; None where nothing.

    Args:
        first: of the first turn.
        again: of a later one.
        nodes: how many of the first are the program's.
    """
    expected = first.nodes[:nodes]
    for old, new in zip(expected, again.nodes, strict=False):
        if _facts(old) != _facts(new):
            return f"{_line(new)}: {_named(new)} stands where the first turn had {_named(old)}; {_CURE}"
    if nodes != len(again.nodes):
        longer = max(expected, again.nodes, key=len)
        extra = longer[min(nodes, len(again.nodes))]
        who = "this turn alone" if longer is again.nodes else "the first turn alone"
        return f"{_line(extra)}: {_named(extra)} is in {who}; {_CURE}"
    for key, constant in first.constants.items():
        if not np.array_equal(constant.array, again.constants[key].array):
            user = next((node for node in again.nodes if _takes(node, key)), None)
            where = "line unknown" if user is None else _line(user)
            return f"{where}: a tensor of this CPU has other elements than in the first turn; {_CURE}"
    if first.updates != again.updates:
        return f"the body of the loop writes other state than in its first turn; {_CURE}"
    return None


def _facts(node: Node) -> Any:
    return node.op, node.arguments, node.results


def _named(node: Node) -> str:
    numbers = [f"{name}={value}" for name, value in node.arguments.items() if isinstance(value, int | float)]
    return f"{node.op}({', '.join(numbers)})"


def _line(node: Node) -> str:
    return node.source or "line unknown"


def _takes(node: Node, key: int) -> bool:
    return any(getattr(value, "id", None) == key for value in node.arguments.values())


P = ParamSpec("P")
T = TypeVar("T")


def step_closure(function: Callable[P, T]) -> Callable[P, T | None]:
    """A function, or a method, that runs behind the step in which it is called, with values for tensors.

    It returns None there. Where no step is recorded, as on this CPU, or within another closure, it is called
    immediately; but a program that drives the appliance expects its calls before the step is compiled to wait
    for `run_queued_closures`.
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
    """Call the step closures that were called before the step was compiled, in their order."""
    here = state()
    here.queues_closures = False
    calls, here.queued_closures = here.queued_closures, []
    for call in calls:
        call()
