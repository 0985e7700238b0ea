"""The steps of a program that drives the appliance: the body of its loop is recorded once for all."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import torch

from cstorch.compiled import models
from cstorch.errors import CheckpointError, ClosureError, SessionError
from cstorch.input import loader
from cstorch.iterations import checkpoint_steps_of
from cstorch.loop.execution import ClosureCall, name_loss
from cstorch.session.core import modes
from cstorch.session.data import DataLoader
from cstorch.session.optim.lr_scheduler import follow_steps
from cstorch.session.process import state
from cstorch.session.steps import Steps, count_figures, current_steps, enter, leave
from cstorch.step_count import continue_at
from cstorch.tracing.device import DeviceTensor, to_device
from cstorch.utils.nest import named_leaves

GLOBAL_STEP = "global_step"
"""Name of the number of steps in the state of a program."""

Grouper = Callable[[Iterable[Any]], Iterable[Any]]
"""Gets the state by name (`fw_name`, `tensor`), and gives groups (`tensors`, `closure`) of it."""


class ApplianceSteps(Steps):
    """Steps that run on the system while the program loops over batches that it does not look at.

    The first batch is described, and what the program does with it is the step. `compile` ends it. After
    `execute` each further batch of the loader stands for one step.

    Args:
        loader: The input as the program has made it on this task.
    """

    def __init__(self, loader: DataLoader) -> None:
        super().__init__(loader, None, 1)
        self._names: dict[str, DeviceTensor] = {}
        self._pending: list[ClosureCall] = []
        self._masks: dict[int, tuple[DeviceTensor, DeviceTensor]] = {}

    @property
    def done(self) -> int:
        """Steps whose outputs the program can get."""
        return self._loop.turn

    @property
    def batch(self) -> Any:
        """The described batch."""
        return self._loop.batch

    @property
    def follows_loader(self) -> bool:
        """True: epochs of the loader are epochs of the program."""
        return True

    def add_names(self, names: Mapping[str, Any]) -> None:
        """Take the names under which state of the program is in checkpoints, while the step is recorded."""
        leaves = {name: x for name, x in named_leaves(names).items() if isinstance(x, DeviceTensor)}
        # `state_dict` gives views of parameters: each would be an output of the step if it were kept.
        of_models = (x for model in models for x in (*model.parameters(), *model.buffers()))
        bases = {id(x.base): x for x in (*of_models, *self._loop.tracing.recording.met)}
        for name, x in leaves.items():
            self._names[name] = x if x.elem is None else bases.get(id(x.base), x)

    def mark_sparse(self, tensor: DeviceTensor) -> None:
        """Keep elements of a tensor at 0 that its initial state has pruned, and have no gradient for them.

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
        """Nothing: `compile` ends the step."""

    def value(self, tensor: DeviceTensor) -> torch.Tensor | None:
        """Return a value of the last step; None where the step does not output it, or has not run."""
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
            outputs: Tensors that the program gets of every step, beside small ones that it holds.

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
        kept = [*self._kept(()), *outputs]
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
        if self._loop.is_running and self._loop.turn < self._loop.steps:
            self._loop.leave()
        super().close()

    def run(
        self, loader: loader.DataLoader | None, total_steps: int, checkpoint_steps: int, mode: str
    ) -> None:
        """Bring the compiled step onto the system, and run it for the first time.

        Args:
            loader: The input that workers make; None for that of the program.
            total_steps: How many steps there are.
            checkpoint_steps: The state can be read after every so many steps; 0 for the last one alone.
            mode: "train" or "eval".
        """
        if loader is not None:
            self._loop.read_from(loader)
        self._loop.may_go_on = False
        self._loop.steps, self._loop.checkpoints = total_steps, checkpoint_steps_of(checkpoint_steps)
        self._mode = mode
        assert self._loop.step is not None, "end_step comes first"
        self._check_mode(self._loop.step)
        self._begin()
        self.advance(1)
        closures, self._pending = self._pending, []
        self._call(closures)

    def advance(self, done: int) -> None:
        """Run steps until so many are done, and follow them in `state()`.

        Raises:
            SessionError: The step was not brought onto the system.
            StepError: There are not that many steps.
            cs_system.errors.CsSystemError: The system failed; a worker was lost.
        """
        if not self._loop.is_running:
            raise SessionError(
                "the program asks for values of a step before ApplianceMode.execute(), expected it behind "
                "compile() in the first turn of the loop"
            )
        while self._loop.turn < done:
            self._loop.take()
            state().rate_tracker.add(self._batch_size)
            state().run_step = self._loop.turn
            self._loop.serve_requests()

    def load_state(self, values: Mapping[str, Any], mode: str, grouper: Grouper | None = None) -> None:
        """Set the state of the program to values by name, as its checkpoints have them.

        NaN marks a pruned element of a tensor that was marked as sparse.

        Args:
            values: The state by name.
            mode: "train" or "eval".
            grouper: Prunes tensors of the state, where it is given.

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
            elements = self._pruned(elements, grouper)
        for name, tensor in used.items():
            given = elements[name]
            if given.shape != tensor.shape:
                raise CheckpointError(
                    f"{name} has the shape {list(given.shape)} in the initial state, expected "
                    f"{list(tensor.shape)} as in the model"
                )
            if id(tensor) in self._masks:
                kept = ~given.isnan()
                self._masks[id(tensor)][1].load(kept)
                given = given.where(kept, torch.zeros_like(given))
            tensor.load(given)
        if mode == modes.TRAIN:
            continue_at(int(values.get(GLOBAL_STEP, 0)))
            for optimizer in state().optimizers:
                follow_steps(optimizer)

    def saved(self, name: str, value: Any) -> Any:
        """Return a value of the state as checkpoints have it: on this CPU, with NaN where it is pruned."""
        if not isinstance(value, DeviceTensor):
            return value
        elements = value.cpu()
        _, mask = self._masks.get(id(self._names.get(name)), (None, None))
        return elements if mask is None else elements.masked_fill(mask.cpu() == 0, torch.nan)

    def _pruned(self, elements: dict[str, torch.Tensor], grouper: Grouper) -> dict[str, torch.Tensor]:
        """Return a state after the closures of its groups, which write NaN into what they prune."""
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
    """Return the steps of this process, where a loop of the program has begun."""
    steps = current_steps()
    return steps if isinstance(steps, ApplianceSteps) else None


def batches_of(loader: DataLoader) -> Iterator[Any]:
    """Yield one epoch: a described batch, recorded at first, that stands for one step each from then on."""
    steps = appliance_steps()
    if steps is None:
        steps = ApplianceSteps(loader)
        enter(steps)
    for _ in loader.epoch():
        if steps.recording:
            raise SessionError(
                "the program goes on to another batch within the step that is recorded, expected "
                "ApplianceMode.compile() and execute() behind the first one"
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
