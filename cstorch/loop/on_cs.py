"""The loop of a program over batches on the CS system.

The first iteration records the step, and each iteration takes the outputs of one step. Between two reads of
the state the system runs ahead of the program. Loops may be nested, such as an evaluation within a training
run: the outer loop gives up the system, and acquires it again at its next step.

`run_loop` serves programs whose step is a function. A session, whose step is everything that happens in its
first iteration, calls `begin_recording`, `end_recording`, `begin`, `take` and `run_closures` itself.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import torch
from torch.utils import _pytree as pytree

from cs_runtime.errors import ModelDirError
from cs_runtime.requeue import leave_for_requeue
from cs_toolkit.garbage import infrequent_collection
from cstorch.errors import ClosureError, LoopLeftError, StateUnavailableError, StepError
from cstorch.input.loader import InputLoader
from cstorch.input.workers import serve_and_leave
from cstorch.iterations import CheckpointSteps, Schedule
from cstorch.job import task
from cstorch.loop.base import ProgramLoop, record_unfinished
from cstorch.loop.execution import (
    ClosureCall,
    Ending,
    Execution,
    Outputs,
    RecordedStep,
    Training,
    name_loss,
    start_run,
)
from cstorch.loop.on_cpu import CpuLoop
from cstorch.program import Program
from cstorch.tracing.device import DeviceTensor, Owner, from_array, value_of
from cstorch.tracing.state import StateSteps, continue_at, model_state, steps_done
from cstorch.tracing.values import META
from input_rules.input_export import export_requested

if TYPE_CHECKING:
    from cstorch.tracing.recording import Recording
    from cstorch.tracing.step import StepTracing, TracedStep

log = logging.getLogger("cstorch")

Entered = TypeVar("Entered", bound=ProgramLoop)
Recordings = dict[Any, RecordedStep]
"""The recorded steps of one function, by arguments, batch, modes and models."""


@dataclass
class _Recording:
    """A step that is being recorded."""

    tracing: StepTracing
    closures: list[ClosureCall] = field(default_factory=list)


class Loop(ProgramLoop):
    """The chief's loop whose steps run on the CS system.

    Args:
        loader: The input.
        steps: Number of steps; None for those of the loader.
        checkpoint_steps: Interval of steps at which the state can be read; None for the configured one.

    Attributes:
        batch: The batch as tensors of the device without values, the same in every iteration.
        step: The recorded step; None before it is recorded.
    """

    def __init__(
        self, loader: InputLoader, steps: int | None = None, checkpoint_steps: int | Schedule | None = None
    ) -> None:
        super().__init__(loader, steps, checkpoint_steps)
        self.batch = loader.batch_without_values()
        self.step: RecordedStep | None = None
        self._loader, self._first_step = loader, steps_done()
        self._recording: _Recording | None = None
        self._execution: Execution | None = None
        self._outputs: Outputs = {}
        self._latest: Recording | None = None
        # Outputs by the id of their tensor. A session records its body again and again, with new tensors: it
        # finds outputs and state by the number of a recorded value, which is the same in every recording.
        self._names: dict[int, tuple[str, torch.dtype]] = {}
        self._names_of_values: dict[int, str] = {}
        self._states_of_values: dict[int, str] = {}
        # The step count of the training run around an evaluation, which counts its own steps meanwhile.
        self._steps_of_training: int | None = None
        # The steps after which the state was fetched, and read by the program.
        self._fetched: int | None = None
        self._read: int | None = None

    # Recording

    def begin_recording(self) -> None:
        """Begin to record the step: everything that happens on the device until `end_recording`."""
        from cstorch.tracing.step import StepTracing  # late: workers have no compiler

        models = Program.current().models
        state = {name: tensor for model in models for name, tensor in model_state(model).items()}
        inputs = [x for x in pytree.tree_leaves(self.batch) if isinstance(x, DeviceTensor)]
        self._recording = _Recording(StepTracing(inputs, state, models, self._latest))
        self._latest = self._recording.tracing.recording

    def end_recording(self, returned: Any) -> RecordedStep:
        """End the recording, and return the step.

        Args:
            returned: Nest whose tensors are outputs of the step, as are those passed to step closures.
        """
        recording, self._recording = self._the_recording(), None
        closures = recording.closures
        outputs = (_wide_loss(returned), returned, [call.arguments for call in closures])
        traced = recording.tracing.end(outputs, with_numbers=True)
        return RecordedStep(
            traced, returned, closures, self._loader.batch_size, tuple(Program.current().models)
        )

    def add_closure(self, call: ClosureCall) -> None:
        """Add a closure that is called while the step is recorded: it will run after every step."""
        self._the_recording().closures.append(call)

    @property
    def tracing(self) -> StepTracing:
        """The recorder of the step that is being recorded."""
        return self._the_recording().tracing

    def _the_recording(self) -> _Recording:
        assert self._recording is not None, "begin_recording comes first"
        return self._recording

    # Running

    def begin(self, step: RecordedStep) -> None:
        """Load a recorded step onto the system; if the program is only compiled, the loop ends here.

        Raises:
            cgc.errors.CompileError: The step cannot be compiled.
            cs_system.errors.CsSystemError: The system is unavailable or busy, or a worker did not connect.
        """
        self.set_step(step)
        counts = self.trains and step.counts
        if counts and not steps_done():
            continue_at(self._loader.initial_step)
        if not self.completed:  # a loop that acquires the system again continues at its own step
            self._first_step = steps_done() if counts or not self.trains else 0
        if counts:
            self._loader.begin_training()
        # The system runs one step at a time, so the loops around this one give it up.
        for outer in Program.current().part(_RunningLoops).stack:
            if outer is not self:
                outer.suspend()
        if self.trains and not counts:
            self._steps_of_training = steps_done()
            continue_at(self.completed)
        epochs = self._loader.epochs_of_loop(self._first_step, self.steps) if counts else None
        self._execution = start_run(
            self._loader,
            step,
            self.steps - self.completed,
            can_extend=self.can_extend,
            epochs=epochs,
        )
        self.ended = self._execution is None
        self._own(None if self.ended else self)

    def set_step(self, step: RecordedStep) -> None:
        """Make a recorded step the step of this loop, and look up the names of its tensors."""
        self.step = step
        graph = step.traced.graph
        outputs = zip(step.traced.output_tensors, graph.outputs, strict=True)
        self._names = {id(tensor): (f"output_{name}", tensor.dtype) for tensor, name in outputs}
        self._names_of_values = {value.id: f"output_{name}" for name, value in graph.outputs.items()}
        self._states_of_values = {value.id: name for name, value in {**graph.state, **graph.updates}.items()}

    def read_from(self, loader: InputLoader) -> None:
        """Replace the input by another one with batches of the same shapes; call it before `begin`."""
        self._loader = loader

    @property
    def is_running(self) -> bool:
        """True while the step is loaded on the system."""
        return self._execution is not None

    @property
    def trains(self) -> bool:
        """True if the recorded step changes a model."""
        return self.step is not None and self.step.mode == "train"

    def take(self) -> None:
        """Wait for the outputs of the next step, which become the values of this iteration.

        Raises:
            StepError: The input has ended.
            NonFiniteLossError: The loss became NaN or infinite.
            cs_system.errors.CsSystemError: The system failed, or a worker was lost.
        """
        if self._execution is None:
            assert self.step is not None, "begin comes first"
            self.begin(self.step)
        assert self._execution is not None
        if self.completed == self.steps:
            raise StepError(
                f"the step is called once more than the loop has steps ({self.steps}), expected one call of "
                "the step in each iteration of the loop"
            )
        found = self._execution.take(self._steps_to_read())
        if found is None:
            raise StepError(
                f"the input ended after step {self.completed} of the loop, before step {self.steps}"
            )
        self.count_step()
        self._outputs = found
        if self.trains:
            continue_at(self._first_step + self.completed)

    def run_closures(self) -> None:
        """Call the closures of the step with the values of this iteration."""
        for call in () if self.step is None else self.step.closures:
            args, kwargs = call.arguments
            call_closure(self, call.function, *args, **kwargs)

    def _steps_to_read(self) -> int:
        """Return the number of steps up to the next one after which the state may be read.

        These are the first and the last step, and the multiples of `checkpoint_steps`, counted in this loop
        or over all loops.
        """
        left, checkpoints = self.steps - self.completed, self.checkpoints
        if self.completed == 0:
            return 1
        if checkpoints is None:
            return left
        done = (self.completed, self._first_step + self.completed)
        # Loops that count from 0 ask `if i % checkpoint_steps == 0`, one step after the multiple.
        return min(left, *(1 if checkpoints.match(step) else checkpoints.left(step) for step in done))

    def value_of(self, tensor: DeviceTensor) -> torch.Tensor:
        """Return the value of a tensor of the device after the last step.

        Raises:
            ClosureError: The tensor is no output of the step.
        """
        known = self._names.get(id(tensor))
        if known is not None:
            name, dtype = known
            return from_array(np.asarray(self._outputs[name]), dtype)
        name_of_value = self._names_of_values.get(self._number_of(tensor))
        if name_of_value is not None:
            return from_array(np.asarray(self._outputs[name_of_value]), tensor.dtype)
        # A recorded value that becomes a state tensor, as one of `state_dict()` in the step.
        state_name = self._states_of_values.get(self._number_of(tensor))
        if state_name is not None and self.step is not None:
            return self.step.traced.state[state_name].to_host()
        if tensor.host is None:
            raise ClosureError(
                "a step closure gets a tensor that no step has returned, expected one that the step returns "
                "or passes to a closure itself"
            )
        return tensor.to_host()

    def output(self, tensor: torch.Tensor) -> torch.Tensor | None:
        """Return the last step's value of a tensor that the step returns; None for other tensors.

        If the program is only compiled, the value has no elements.
        """
        if not isinstance(tensor, DeviceTensor) or id(tensor) not in self._names:
            return None
        if self._outputs:
            return self.value_of(tensor)
        return (
            torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device=META)
            if self.ended
            else None
        )

    def _number_of(self, tensor: DeviceTensor) -> int:
        """Return the number of a recorded value, the same in every recording of the step; 0 for others."""
        if tensor.elem is None or value_of(tensor).recording is not self._latest:
            return 0
        return value_of(tensor).value.id

    def batches(self) -> Iterator[Any]:
        """Yield the batch without values, once for each step."""
        for _ in range(self.steps):
            yield self.batch
            if self.ended:
                break
            self.serve_requests()

    def figures(self) -> dict[str, float | None]:
        """Return the figures of a training run, see `Training.figures`; none for an evaluation."""
        return self._execution.figures() if isinstance(self._execution, Training) else {}

    # The state

    def refresh(self, tensor: DeviceTensor) -> None:
        """Fetch the state after the last step to this CPU, or only a tensor that is an output of the step.

        Raises:
            StateUnavailableError: The system has already advanced to a later step.
        """
        if id(tensor) in self._names and self._outputs:
            tensor.load(self.value_of(tensor))
        elif self.trains:
            self._read = self.completed
            # The program writes a checkpoint, for example, while the next steps run.
            ahead = self._steps_to_read() if self.completed < self.steps else 0
            self._fetch(ahead)
            if isinstance(self._execution, Training) and self._fetched == self.completed and ahead:
                self._execution.begin(ahead)

    def _fetch(self, ahead: int = 0) -> None:
        if self._execution is None or self._fetched == self.completed or not self.completed:
            return
        state = self._execution.state(ahead)
        if state is None:
            raise StateUnavailableError(self.completed, self.checkpoints)
        assert self.step is not None
        for name, tensor in self.step.traced.state.items():
            if name in state:
                tensor.load(from_array(np.asarray(state[name]), tensor.dtype, copy=False))
        self._fetched = self.completed

    def _own(self, owner: Owner | None) -> None:
        """Set the owner of the tensors that the step changes; those that it only reads stay on this CPU."""
        if self.step is None:
            return
        reads = _ReadOnly(self) if owner is self else None
        for name, tensor in self.step.traced.state.items():
            tensor.owner = owner if name in self.step.traced.graph.updates else reads

    # The end

    def suspend(self) -> None:
        """Give up the system until the next step, for a loop inside this one.

        Raises:
            StateUnavailableError: The system has already advanced to a later step.
        """
        if self._execution is not None:
            self.close()

    def close(self) -> None:
        """End the run, and fetch the state after its last step to this CPU."""
        self._end("completed")

    def _end(self, ended: Ending) -> None:
        self._fetch()
        execution, self._execution = self._execution, None
        try:
            if execution is not None:
                execution.close(ended=ended)
        finally:
            self._continue_training()
            self._own(None)

    def _continue_training(self) -> None:
        """Restore the step count of the training run after an evaluation, which counts its own steps."""
        if self._steps_of_training is not None:
            continue_at(self._steps_of_training)
            self._steps_of_training = None

    def serve_requests(self) -> None:
        """Treat the state that the program has just read as the checkpoint that SIGUSR1 requested, if any.

        If the job will be requeued, this ends the program.
        """
        requests = Program.current().checkpoint_requests
        if not requests.pending or not self.trains or self._read != self.completed:
            return
        if task().requeue and self.completed == self.steps:
            return  # the program finishes its work after the last step; a later loop leaves
        log.info("the program has read its state at global step %d, requested by SIGUSR1", steps_done())
        if task().requeue:
            self._end("requeued")
            leave_for_requeue(steps_done())
        requests.clear()

    def leave(self) -> None:
        """End a loop that the program leaves early, with `break` or an error."""
        if isinstance(self._execution, Training):
            record_unfinished(self._execution.record_failure)
        try:
            self._end("left")
        except StateUnavailableError:
            self.abandon(None)
            self._own(_Lost(self.completed, self.checkpoints))
        except ModelDirError as error:
            # Python cannot raise an error while it closes a generator: it would print a traceback.
            log.error("the result of the run is not recorded: %s", error)

    def abandon(self, error: BaseException | None) -> None:
        """End the run after an error without fetching the state."""
        self.ended = True
        if self._recording is not None:
            self._recording.tracing.abandon()
            self._recording = None
        execution, self._execution = self._execution, None
        if execution is not None:
            execution.close(error, "left")
        self._continue_training()


def _wide_loss(returned: Any) -> DeviceTensor | None:
    """Return the loss of a step in float32 if it has 16 bits; None otherwise."""
    # A run looks for its loss among the float32 outputs, and would take another number for it, such as the
    # scaled loss or the scale.
    tensors = (x for x in pytree.tree_leaves(returned) if isinstance(x, DeviceTensor))
    loss = next((x for x in tensors if not x.shape and x.is_floating_point()), None)
    if loss is None or loss.dtype not in (torch.float16, torch.bfloat16):
        return None
    wide: DeviceTensor = loss.detach().float()
    return wide


@dataclass(frozen=True)
class _ReadOnly:
    """Owner of tensors that the step of a running loop only reads, and which this CPU also has."""

    # The system has received their elements with the step, so writes of the program would be lost.
    loop: Loop

    @property
    def ended(self) -> bool:
        """True if the loop has ended."""
        return self.loop.ended

    def refresh(self, tensor: DeviceTensor) -> None:
        """Do nothing: this CPU has the elements."""


@dataclass(frozen=True)
class _Lost:
    """Owner of tensors whose elements were lost with a run that the program has left."""

    completed: int
    checkpoints: CheckpointSteps | None
    ended: bool = True

    def refresh(self, tensor: DeviceTensor) -> None:
        """Raise an error: the elements are lost."""
        raise LoopLeftError(self.completed, self.checkpoints)


@dataclass
class _RunningLoops:
    """The loops that the program is in, innermost last."""

    stack: list[ProgramLoop] = field(default_factory=list)


def current_loop() -> ProgramLoop | None:
    """Return the innermost loop that the program is in."""
    loops = Program.current().part(_RunningLoops).stack
    return loops[-1] if loops else None


@contextmanager
def enter_loop(loop: Entered) -> Iterator[Entered]:
    """Make a loop the current one within the body, and end it afterwards."""
    program = Program.current()
    loops, output_readers = program.part(_RunningLoops).stack, program.output_readers
    loops.append(loop)
    output_readers.append(loop.output)
    try:
        yield loop
        loop.close()
    except GeneratorExit:  # the program has left its loop, by `break` or an error
        loop.leave()
        raise
    except BaseException as error:
        loop.abandon(error)
        raise
    finally:
        loop.ended = True
        output_readers.remove(loop.output)
        loops.remove(loop)


def run_loop(
    loader: InputLoader,
    steps: int | None = None,
    checkpoint_steps: int | Schedule | None = None,
    writer: Any = None,
) -> Iterator[Any]:
    """Yield a batch for each step: without values for the CS system, with values on this CPU.

    A worker whose program has not configured its run serves the chief here, and exits.
    """
    if task().role == "worker" and not export_requested():
        serve_and_leave()
    kind = CpuLoop if Program.current().on_cpu else Loop
    loop: ProgramLoop = kind(loader, steps, checkpoint_steps)
    loop.writer = writer
    with enter_loop(loop):
        yield from loop.batches()


def run_step(function: Callable[..., Any], args: Any, kwargs: Any, known: Recordings) -> Any:
    """Run one step of a step function in the current loop.

    Args:
        function: The step function.
        args: Its positional arguments.
        kwargs: Its keyword arguments.
        known: The steps that were recorded of it, to which a new recording is added.
    """
    loop = current_loop()
    if not isinstance(loop, Loop):
        raise StepError(
            f"{getattr(function, '__qualname__', 'a step')}() is called outside of a loop over a DataLoader, "
            "expected `for batch in cstorch.utils.data.DataLoader(input_fn, ...)` around it"
        )
    try:
        if loop.step is None:
            loop.begin(_record_step(loop, function, args, kwargs, known))
        assert loop.step is not None
        if loop.step not in known.values():
            raise StepError(
                f"{getattr(function, '__qualname__', 'a step')}() is another step than the one that this "
                "loop runs, expected one step function in a loop; call the parts in one function"
            )
        if not loop.ended:
            _require_same_numbers(loop.step.traced)
            loop.take()
            loop.run_closures()
    except BaseException as error:
        loop.abandon(error)  # the program may keep the iterator of the loop alive for any time
        workers = Program.current().local_workers
        if workers is not None:
            raise workers.explain(error) from None
        raise
    return loop.step.returned


def _record_step(
    loop: Loop, function: Callable[..., Any], args: Any, kwargs: Any, known: Recordings
) -> RecordedStep:
    key = _key(loop.batch, args, kwargs)
    if key not in known or known[key].traced.is_outdated():
        _require_batch(args, kwargs)
        with infrequent_collection():
            loop.begin_recording()
            known[key] = loop.end_recording(function(*args, **kwargs))
        name_loss(known[key])
    return known[key]


def _require_same_numbers(step: TracedStep) -> None:
    changed = step.find_changed_number()
    if changed is not None:
        name, was, now = changed
        raise StepError(
            f"{name} of an optimizer's group is set to {now} in the loop, but the step was recorded with "
            f"{was} and keeps it; take a schedule of cstorch.optim.lr_scheduler or weight_decay_scheduler, "
            "and call its step() inside the step"
        )


def _require_batch(args: Any, kwargs: Any) -> None:
    if any(isinstance(x, InputLoader) for x in (*args, *kwargs.values())):
        raise StepError(
            "the step gets the DataLoader instead of the batch of the loop; pass the batches of the loop "
            "over it, as in `for batch in dataloader: step(batch)`"
        )
    tensors = [x for x in pytree.tree_leaves((args, kwargs)) if isinstance(x, torch.Tensor)]
    if tensors and not any(isinstance(x, DeviceTensor) for x in tensors):
        raise StepError(
            "the step gets tensors of this CPU instead of the batch of the loop, which would be the same in "
            "every step; pass the batches of the loop over the cstorch DataLoader"
        )


def _key(batch: Any, args: Any, kwargs: Any) -> Any:
    """Return the key of a recorded step: its arguments, batch, modes and models."""
    inputs = [x for x in pytree.tree_leaves(batch) if isinstance(x, torch.Tensor)]
    positions = {id(tensor): position for position, tensor in enumerate(inputs)}
    leaves, nest = pytree.tree_flatten((args, kwargs))
    given = tuple(
        ("batch", positions[id(x)])
        if id(x) in positions
        else (type(x), x if isinstance(x, bool | int | float | str | None) else id(x))
        for x in leaves
    )
    models = Program.current().models
    shapes = tuple((tuple(x.shape), x.dtype) for x in inputs)
    modes = tuple(tuple(part.training for part in model.modules()) for model in models)
    return given, str(nest), shapes, modes, tuple(map(id, models)), torch.is_grad_enabled()


def call_closure(loop: ProgramLoop, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Call a step closure with values instead of tensors of the device."""
    values = [_with_values(loop, x) for x in args]
    return function(*values, **{name: _with_values(loop, x) for name, x in kwargs.items()})


def call_closure_outside_loops(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Call a step closure outside of loops, where tensors have their values on this CPU.

    Raises:
        ClosureError: A tensor has no value.
    """

    def value(tensor: DeviceTensor) -> torch.Tensor:
        if tensor.host is None:
            raise ClosureError(
                "a step closure is called outside of a loop over a DataLoader with a tensor of a step, "
                "expected a call inside of the step, or after it in the loop"
            )
        return tensor.to_host()

    args, kwargs = pytree.tree_map_only(DeviceTensor, value, (args, kwargs))
    return function(*args, **kwargs)


def _with_values(loop: ProgramLoop, x: Any) -> Any:
    """Return a nest with values instead of tensors of the device and of computed tensors of this CPU."""
    if x is None or type(x) in (bool, int, float, str):
        return x

    def value(tensor: torch.Tensor) -> torch.Tensor:
        if isinstance(tensor, DeviceTensor):
            found = loop.value_of(tensor)
            for hook in list(Program.current().hooks.tensor_to_cpu.values()):
                hook(found, "output")
            return found
        # Closures call `numpy()`, which refuses tensors with gradients, on the CPU backend too.
        return tensor if tensor.is_leaf else tensor.detach()

    with_values = pytree.tree_map_only(torch.Tensor, value, x)
    return pytree.tree_map_only(StateSteps, lambda _: steps_done(), with_values)
