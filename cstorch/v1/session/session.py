"""`with Session(...)`: the loop over batches in it runs on the CS system."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import repeat
from types import SimpleNamespace, TracebackType
from typing import Any

import torch

from cs_runtime.session import next_run
from cs_runtime.tasks import current, has_input, log_idle
from cs_runtime.worker import run_worker
from cstorch.core import modes
from cstorch.errors import CheckpointError, ClosureError, InputError, SessionError
from cstorch.input.analysis import export_input_function
from cstorch.iterations import checkpoint_steps_of
from cstorch.job import reading_as
from cstorch.loop import loaders
from cstorch.loop.execution import ClosureCall, name_loss, run_settings
from cstorch.program import Program, configuration
from cstorch.tracing.device import DeviceTensor, to_device
from cstorch.tracing.state import continue_at
from cstorch.utils.helpers import named_leaves
from cstorch.v1.session.environment import env, is_worker_alone, state, use_cs
from cstorch.v1.session.optim.lr_scheduler import follow_steps
from cstorch.v1.session.optimizers import optimizer
from cstorch.v1.session.rendezvous import count_place, wait_for_next_place
from cstorch.v1.session.steps import Steps, count_figures, current_steps, enter, leave, step_closure

log = logging.getLogger("cstorch")

# Length of an epoch of a loader without a length; the program's loop ends with its own loader.
_MANY_STEPS = 1 << 20

GLOBAL_STEP = "global_step"
"""Name of the number of steps in the state of a program."""

Grouper = Callable[[Iterable[Any]], Iterable[Any]]
"""A function that sorts the state (`fw_name`, `tensor`) into groups (`tensors`, `closure`)."""


class DataLoader(loaders.DataLoader):
    """A loader whose batches are described in the loop of a session, and streamed by the workers.

    Where this process computes on its own CPU its batches are those of the loader.

    Args:
        loader: A `torch.utils.data.DataLoader`, or another iterable of batches.
        use_parallel_loader: Without effect: workers always stream while steps run.
    """

    sends_function = False

    def __init__(self, loader: Any, use_parallel_loader: bool = True) -> None:
        if not hasattr(loader, "__iter__"):
            raise InputError(
                f"dataloader() got a {type(loader).__name__}, expected a torch.utils.data.DataLoader"
            )
        super().__init__(_identity, loader)
        self.use_parallel_loader = use_parallel_loader

    def __iter__(self) -> Iterator[Any]:
        return batches_of(self) if use_cs() else iter(self._loader)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name == "_args":
            raise AttributeError(f"'{type(self).__name__}' object has no attribute '{name}'")
        return getattr(self._args[0], name)

    def __len__(self) -> int:
        return len(self._loader)

    @property
    def steps(self) -> int:
        """Batches of one epoch; a large number if the loader has no length."""
        return self.epoch_steps(counted=False)

    def epoch(self) -> Iterator[Any]:
        """Return an iterator with an entry for each batch; the loader itself if it has no length."""
        try:
            return iter(repeat(None, len(self)))
        except TypeError:  # of an iterable dataset
            return iter(self._loader)

    def epoch_steps(self, *, counted: bool) -> int:
        """Return the batches of one epoch.

        Args:
            counted: Read a loader without a length once to its end, instead of assuming a large number.
        """
        try:
            return len(self)
        except TypeError:
            return sum(1 for _ in self._loader) if counted else _MANY_STEPS


def _identity(loader: Any) -> Any:
    """Return the loader: the input function of a session, the same function in all tasks."""
    return loader


def dataloader(loader: Any, use_parallel_loader: bool = True) -> DataLoader:
    """Return a loader for the loop of a session, with the arguments of `DataLoader`."""
    return loader if isinstance(loader, DataLoader) else DataLoader(loader, use_parallel_loader)


class Session:
    """The context of a training run or an evaluation, whose loop runs on the CS system.

    A step is what the program does between two batches of its loader. With `cm.set_run_config` the body of
    the loop runs for the steps whose outputs the program fetches; without it, for every batch. A worker
    streams its batches when its loop begins, and gets none. Its program ends there, unless the chief enters
    another loop or rendezvous.

    If this process computes on its own CPU, a session changes nothing.

    Args:
        given: The loader; or model, optimizer and criterion, as release 1.2 first announced; then the mode.
            Optimizers among them are prepared as by `cbtorch.optimizer`.
        dataloader: The loader.
        mode: "train" or "eval".
        objects: Further objects by name, as `given`.

    Attributes:
        streamed: This is a worker whose loop has begun.

    Raises:
        SessionError: The mode is unknown, or the session is inside another one.
    """

    def __init__(self, *given: Any, dataloader: Any = None, mode: str | None = None, **objects: Any) -> None:
        names = [x for x in given if isinstance(x, str)]
        self.mode = mode or (names[0] if names else modes.TRAIN)
        if not modes.is_valid(self.mode):
            raise SessionError(f"mode is '{self.mode}', expected one of {', '.join(modes.get_modes())}")
        for x in (*given, *objects.values()):
            if isinstance(x, torch.optim.Optimizer):
                optimizer(x)
        loaders = [x for x in (dataloader, *given) if isinstance(x, DataLoader)]
        self.dataloader: DataLoader | None = loaders[0] if loaders else None
        self._steps: Steps | None = None
        self._loader: DataLoader | None = None
        self.streamed = False

    def __enter__(self) -> Session:
        entered = Program.current().part(_Sessions).entered
        if entered:
            raise SessionError("a session begins inside another one, expected that to end before")
        entered.append(self)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self._end(error)
        finally:
            Program.current().part(_Sessions).entered.remove(self)

    def add_step_closure(
        self, closure: Callable[..., Any], args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> None:
        """Run a function after the step, with values for tensors of the device."""
        step_closure(closure)(*args, **(kwargs or {}))

    def mark_step(self) -> None:
        """End the step, as the next batch does."""
        mark_step()

    def steps_of(self, loader: DataLoader) -> Steps:
        """Return the steps of a loop over a loader; a training run continues from epoch to epoch."""
        same = self._steps is not None and self._loader is loader
        if same and self.mode == modes.TRAIN and self._steps is not None:
            self._steps.finish()
            self._steps.add(loader.epoch_steps(counted=False))
            return self._steps
        self._end(None)
        count_place()
        self._loader = loader
        steps = loader.epoch_steps(counted=self.mode != modes.TRAIN)
        self._steps = Steps(loader, self.mode, steps)
        enter(self._steps)
        return self._steps

    def stream(self, loader: DataLoader) -> None:
        """Stream the batches of a worker until the chief has completed its steps.

        This ends the worker's program, unless the chief enters another loop or rendezvous: the code after the
        loop needs batches, for a mean of losses for example.
        """
        # A training run takes batches of all workers in rotation, an evaluation those of worker 0.
        task = current()
        again, self.streamed = self.streamed, True
        if self.mode == modes.TRAIN:
            if again:
                return
            count_place()
            run_worker(loader, run_settings(loader, "train"), task, next_run())
        else:
            count_place()
            run, whole = next_run(), replace(task, num_workers=1)
            if has_input(whole):
                with reading_as(1, 0):
                    run_worker(loader, run_settings(loader, "eval"), whole, run)
        if not wait_for_next_place():
            log.info("worker %d has streamed all batches that the chief has requested", task.index)
            sys.exit(0)

    def _end(self, error: BaseException | None) -> None:
        steps, self._steps = self._steps, None
        if steps is None:
            return
        try:
            if error is None:
                steps.close()
            else:
                steps.abandon(error)
        finally:
            Program.current().part(_Sessions).ended_steps = steps
            leave(steps)


@dataclass
class _Sessions:
    """The sessions of a program.

    Attributes:
        entered: Sessions that have begun and not ended.
        ended_steps: The steps of the last session that has ended.
    """

    entered: list[Session] = field(default_factory=list)
    ended_steps: Steps | None = None


def mark_step() -> None:
    """End the step that is being recorded, if any, and run it."""
    steps = current_steps()
    if steps is not None:
        steps.finish()


def is_in_steps() -> bool:
    """Return True while the loop of a session runs, in which tasks are at different places."""
    return current_steps() is not None or any(
        session.streamed for session in Program.current().part(_Sessions).entered
    )


def batches_of(loader: DataLoader) -> Iterator[Any]:
    """Return the batches of a loop: without values on the chief, none on a worker, which streams them."""
    if env().appliance:
        return _batches_of_appliance(loader)
    entered = Program.current().part(_Sessions).entered
    session = entered[-1] if entered else None
    config = configuration()
    only_compiled = config.compile_only or config.validate_only
    if is_worker_alone():
        export_input_function(loader)  # ends the process if cs_input_analyzer has started it
        if only_compiled:
            log_idle("the program is only compiled")
            sys.exit(0)
        if session is not None:
            session.stream(loader)
        return iter(())
    if session is not None:
        return _StepBatches(session.steps_of(loader), loader)
    if not only_compiled:
        raise SessionError(
            "the program loops over a DataLoader of the CS system outside of a session, expected "
            "`with cbtorch.Session(dataloader, mode='train'):` around the loop"
        )
    steps = current_steps()
    if steps is None:
        steps = Steps(loader, None, 1)
        enter(steps)
    return _StepBatches(steps, loader)


class _StepBatches:
    """A batch without values for each step."""

    def __init__(self, steps: Steps, loader: DataLoader) -> None:
        self._steps = steps
        self._epoch = loader.epoch()

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        self._steps.finish()
        if self._steps.ended or (self._steps.follows_loader and not _has_next(self._epoch)):
            raise StopIteration
        return self._steps.begin()


def _has_next(epoch: Iterator[Any]) -> bool:
    missing = object()
    return next(epoch, missing) is not missing


def compile(fabric_config_file: str | None = None, validate_only: bool = False) -> bool:  # noqa: A001
    """Compile the step that the program has just recorded, after `initialize(compile_only=True)`.

    Args:
        fabric_config_file: YAML file or name of a fabric; None for that of the CS system, or "cs2".
        validate_only: Only check that the step can be compiled.

    Returns:
        True.

    Raises:
        SessionError: No step was recorded.
        cgc.errors.CompileError: The step cannot be compiled.
    """
    if is_worker_alone():
        return True
    steps = current_steps()
    ended = Program.current().part(_Sessions).ended_steps
    if steps is None and ended is not None and ended.compiled:
        return True  # the end of the session has compiled it
    if not use_cs() or steps is None or not (steps.recording or steps.compiled):
        raise SessionError(
            "compile() is called before a step, expected initialize(compile_only=True) and one iteration of "
            "the loop over the DataLoader before it"
        )
    if fabric_config_file is not None:
        Program.current().change_configuration(fabric=str(fabric_config_file))
    if validate_only:
        Program.current().change_configuration(compile_only=False, validate_only=True)
    steps.close()
    leave(steps)
    return True


class ApplianceSteps(Steps):
    """Steps of a program that drives the appliance: the body of its loop is recorded once for all steps.

    The first batch has no values, and what the program does with it is the step, which `compile` ends. After
    `execute` each further batch of the loader represents one step on the system.

    Args:
        loader: The input as the program has created it on this task.
    """

    def __init__(self, loader: DataLoader) -> None:
        super().__init__(loader, None, 1)
        self._names: dict[str, DeviceTensor] = {}
        self._pending: list[ClosureCall] = []
        self._masks: dict[int, tuple[DeviceTensor, DeviceTensor]] = {}

    @property
    def done(self) -> int:
        """Number of steps whose outputs the program can get."""
        return self._loop.completed

    @property
    def batch(self) -> Any:
        """The batch without values."""
        return self._loop.batch

    @property
    def follows_loader(self) -> bool:
        """True: epochs of the loader are epochs of the program."""
        return True

    def add_names(self, names: Mapping[str, Any]) -> None:
        """Add the names that the program's state has in checkpoints; call it while the step is recorded."""
        leaves = {name: x for name, x in named_leaves(names).items() if isinstance(x, DeviceTensor)}
        # `state_dict` returns views of parameters, which would be outputs of the step if they were kept.
        of_models = (x for model in Program.current().models for x in (*model.parameters(), *model.buffers()))
        bases = {id(x.base): x for x in (*of_models, *self._loop.tracing.recording.unnamed)}
        for name, x in leaves.items():
            self._names[name] = x if x.elem is None else bases.get(id(x.base), x)

    def mark_sparse(self, tensor: DeviceTensor) -> None:
        """Keep the pruned elements of a tensor's initial state at 0, without gradients.

        Args:
            tensor: A weight, or state of an optimizer, that the recorded step has not used yet.
        """
        if id(tensor) in self._masks:
            return
        mask: Any = to_device(torch.ones(tensor.shape))
        self._loop.tracing.keep_as_state(mask)
        self._masks[id(tensor)] = (tensor, mask)
        if tensor.requires_grad:
            tensor.register_hook(lambda gradient: gradient * mask)

    def finish(self, read: Sequence[DeviceTensor] = ()) -> None:
        """Do nothing: `compile` ends the step."""

    def value(self, tensor: DeviceTensor) -> torch.Tensor | None:
        """Return a value of the last step; None if it is no output of the step, or the step has not run."""
        if self.recording or not self.done:
            return None
        try:
            return self._loop.value_of(tensor)
        except ClosureError:
            return None

    def read(self, tensor: DeviceTensor) -> torch.Tensor:
        """Return a value of the last step, which outputs it."""
        return self._loop.value_of(tensor)

    def end_step(self, outputs: Iterable[DeviceTensor]) -> DeviceTensor | None:
        """End the step that is recorded.

        Args:
            outputs: Tensors that are outputs of every step, in addition to small ones that the program holds.

        Returns:
            The loss; None of an evaluation without one.

        Raises:
            SessionError: No step is recorded.
        """
        if not self.recording:
            raise SessionError(
                "ApplianceMode.compile() is called before a step, expected one turn of the loop over the "
                "DataLoader before it"
            )
        if self._loop.tracing.changes_parameters():
            with torch.no_grad():
                for tensor, mask in self._masks.values():
                    tensor.mul_(mask)
        kept = [*self._step_outputs(()), *outputs]
        self.recording = False
        self._check_numbers()
        step = self._loop.end_recording(kept)
        name_loss(step)
        self._pending = list(step.closures)
        self._loop.set_step(step)
        named = zip(step.traced.graph.outputs, step.traced.output_tensors, strict=True)
        return next((tensor for name, tensor in named if name == "loss"), None)

    def compile_step(self) -> None:
        """Compile the step, and run nothing."""
        self._begin()

    def close(self) -> None:
        """End the run, also where the program leaves its loop before the last step."""
        if self._loop.is_running and self._loop.completed < self._loop.steps:
            self._loop.leave()
        super().close()

    def run(
        self, loader: loaders.DataLoader | None, total_steps: int, checkpoint_steps: int, mode: str
    ) -> None:
        """Load the compiled step onto the system, and run it for the first time.

        Args:
            loader: The input that workers create; None for that of the program.
            total_steps: Number of steps.
            checkpoint_steps: Interval of steps after which the state can be read; 0 for the last step only.
            mode: "train" or "eval".
        """
        if loader is not None:
            self._loop.read_from(loader)
        self._loop.can_extend = False
        self._loop.steps, self._loop.checkpoints = total_steps, checkpoint_steps_of(checkpoint_steps)
        self._mode = mode
        assert self._loop.step is not None, "end_step comes first"
        self._check_mode(self._loop.step)
        self._begin()
        self.advance(1)
        closures, self._pending = self._pending, []
        self._call(closures)

    def advance(self, done: int) -> None:
        """Run steps until `done` are completed, and count them in `state()`.

        Raises:
            SessionError: The step was not loaded onto the system.
            StepError: There are fewer steps.
            cs_system.errors.CsSystemError: The system failed, or a worker was lost.
        """
        if not self._loop.is_running:
            raise SessionError(
                "the program asks for values of a step before ApplianceMode.execute(), expected it after "
                "compile() in the first iteration of the loop"
            )
        while self._loop.completed < done:
            self._loop.take()
            state().rate_tracker.add(self._batch_size)
            state().run_step = self._loop.completed
            self._loop.serve_requests()

    def load_state(self, values: Mapping[str, Any], mode: str, grouper: Grouper | None = None) -> None:
        """Set the state of the program to values by name, as its checkpoints have them.

        NaN marks a pruned element of a tensor that was marked as sparse.

        Args:
            values: The state by name.
            mode: "train" or "eval".
            grouper: Function that prunes tensors of the state.

        Raises:
            CheckpointError: A tensor is missing, or has another shape.
            SessionError: The grouper prunes a tensor that was not marked as sparse.
        """
        assert self._loop.step is not None, "end_step comes first"
        state_tensors = set(map(id, self._loop.step.traced.state.values()))
        used = {name: tensor for name, tensor in self._names.items() if id(tensor) in state_tensors}
        missing = [name for name in used if name not in values]
        if missing:
            raise CheckpointError(f"the initial state has no {missing[0]}, expected it: the step uses it")
        elements = {name: torch.as_tensor(values[name]) for name in used}
        if grouper is not None:
            elements = self._prune(elements, grouper)
        for name, tensor in used.items():
            given = elements[name]
            if given.shape != tensor.shape:
                raise CheckpointError(
                    f"{name} has the shape {list(given.shape)} in the initial state, expected "
                    f"{list(tensor.shape)} as in the model"
                )
            if id(tensor) in self._masks:
                mask = ~given.isnan()
                self._masks[id(tensor)][1].load(mask)
                given = given.where(mask, torch.zeros_like(given))
            tensor.load(given)
        if mode == modes.TRAIN:
            continue_at(int(values.get(GLOBAL_STEP, 0)))
            for optimizer in state().optimizers:
                follow_steps(optimizer)

    def checkpoint_value(self, name: str, value: Any) -> Any:
        """Return a value of the state as checkpoints have it: on this CPU, with NaN for pruned elements."""
        if not isinstance(value, DeviceTensor):
            return value
        elements = value.cpu()
        _, mask = self._masks.get(id(self._names.get(name)), (None, None))
        return elements if mask is None else elements.masked_fill(mask.cpu() == 0, torch.nan)

    def _prune(self, elements: dict[str, torch.Tensor], grouper: Grouper) -> dict[str, torch.Tensor]:
        """Return the state after the closures of its groups, which write NaN into pruned elements."""
        sent = [SimpleNamespace(fw_name=name, tensor=x.numpy().copy()) for name, x in elements.items()]
        for group in grouper(sent):
            if group.closure is not None:
                group.closure(group.tensors)
        pruned = {payload.fw_name: torch.from_numpy(payload.tensor) for payload in sent}
        for name, x in pruned.items():
            if x.is_floating_point() and x.isnan().any() and id(self._names[name]) not in self._masks:
                raise SessionError(
                    f"send_weights_grouper prunes {name}, expected a tensor that was marked before the step "
                    f'by cm.set_attribute(tensor, "sparse", True), as releases 1.8 and 1.9 do'
                )
        return pruned

    def _begin(self) -> None:
        step = self._loop.step
        assert step is not None, "end_step comes first"
        self._loop.begin(step)
        state().rate_tracker.reset()
        count_figures(self._loop.figures())


def appliance_steps() -> ApplianceSteps | None:
    """Return the steps of the current loop; None outside of a loop."""
    steps = current_steps()
    return steps if isinstance(steps, ApplianceSteps) else None


def _batches_of_appliance(loader: DataLoader) -> Iterator[Any]:
    """Yield one epoch: a batch without values, whose use is recorded first, then one for each step."""
    steps = appliance_steps()
    if steps is None:
        steps = ApplianceSteps(loader)
        enter(steps)
    for _ in loader.epoch():
        if steps.recording:
            raise SessionError(
                "the program continues to another batch within the step that is recorded, expected "
                "ApplianceMode.compile() and execute() after the first one"
            )
        if not steps.compiled:
            yield steps.begin()
        elif steps.ended:
            return
        else:
            steps.advance(steps.done + 1)
            yield steps.batch


def end_steps(error: BaseException | None) -> None:
    """End the run, and the steps of this process."""
    steps = appliance_steps()
    if steps is None:
        return
    leave(steps)
    if error is None:
        steps.close()
    else:
        steps.abandon(error)
