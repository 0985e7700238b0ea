"""The loop of a program: the first step is traced and compiled, the others run on the CS system.

A program owns its loop. Each turn takes the outputs of one step; between two reads of the state the system
runs ahead of the program.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils import _pytree as pytree

from cs_runtime import inference
from cs_runtime.program import StepProgram
from cs_runtime.session import next_run
from cs_runtime.settings import Command, RunSettings
from cs_runtime.tasks import current
from cs_runtime.timeline import Timeline
from cs_runtime.training_run import TrainingRun, training_run
from cs_runtime.worker import run_worker
from cs_system.client import StepOutputs
from cs_toolkit.step import GLOBAL_STEP
from cstorch.compiled import models
from cstorch.config import configuration
from cstorch.data import DataLoader
from cstorch.errors import ClosureError, StateNotThereError, StepError
from cstorch.tracing.device import DeviceTensor, from_array
from cstorch.tracing.record import to_array
from cstorch.tracing.step import MODEL_PREFIX, TracedStep, model_state, trace

log = logging.getLogger("cstorch")

RUN_AHEAD_STEPS = 64
"""The most steps that the system is ahead of the program."""


@dataclass(frozen=True)
class ClosureCall:
    """A call of a step closure within the step: it is repeated after every step."""

    function: Callable[..., Any]
    arguments: Any


class FrontEnd:
    """Implements `cs_runtime.program.FrontEnd` for a traced step."""

    def __init__(self, loader: DataLoader, program: StepProgram, state: Mapping[str, DeviceTensor]) -> None:
        self.inputs, self.input_facts, self.batches = loader.inputs, loader.input_facts, loader.batches
        self._program, self._state = program, state

    def program(self) -> StepProgram:
        """See `cs_runtime.program.FrontEnd`."""
        return self._program

    def initial_state(self) -> dict[str, np.ndarray]:
        """What the tensors of the device hold, and the number of the first step."""
        values = {name: to_array(tensor.held()) for name, tensor in self._state.items()}
        return {**values, GLOBAL_STEP: np.asarray(first_step(), np.int64)}

    def save(self, step: int, state: Mapping[str, np.ndarray]) -> bool:
        """Nothing: programs save by themselves."""
        return False


_first_step = [0]


def first_step() -> int:
    """The number of steps that the state of this process has behind it."""
    return _first_step[0]


def continue_at(step: int) -> None:
    """The state that was loaded has so many steps behind it."""
    _first_step[0] = step


class Loop:
    """One loop over a DataLoader, on the chief."""

    def __init__(self, loader: DataLoader) -> None:
        self.loader = loader
        self.batch = loader.described()
        self.ended = False
        self._stack = ExitStack()
        self._traced: TracedStep | None = None
        self._closures: list[ClosureCall] = []
        self._outputs: deque[dict[str, np.ndarray]] = deque()
        self._values: dict[int, torch.Tensor] = {}
        self._run: TrainingRun | None = None
        self._inference: Generator[dict[str, np.ndarray], None, None] | None = None
        self._turn = 0
        self._fetched: int | None = None

    def call(self, function: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """One step; in the first turn it is traced, compiled and sent."""
        try:
            if self._traced is None:
                self._start(function, args, kwargs)
            assert self._traced is not None
            if not self.ended:
                self._take()
        except BaseException as error:
            self.abandon(error)  # the program may keep the loop alive for as long as it likes
            raise
        if not self.ended:
            for call in self._closures:
                call_args, call_kwargs = call.arguments
                call_closure(self, call.function, *call_args, **call_kwargs)
        return self._traced.returned[0]

    def add_closure(self, call: ClosureCall) -> None:
        """A closure that the step itself calls."""
        self._closures.append(call)

    def value_of(self, tensor: DeviceTensor) -> torch.Tensor:
        """What a tensor of the device holds after the step of this turn.

        Raises:
            ClosureError: the step does not put it out.
        """
        found = self._values.get(id(tensor))
        if found is not None:
            return found
        if tensor.host is None:
            raise ClosureError(
                "a step closure gets a tensor that no step has returned, expected one that the step returns "
                "or passes to a closure itself"
            )
        return tensor.held()

    def refresh(self) -> None:
        """Brings the state to this CPU, as it is after the step of this turn.

        Raises:
            StateNotThereError: the system is at another step by now.
        """
        if self._run is None or self._fetched == self._turn:
            return
        if self._outputs:
            raise StateNotThereError(first_step() + self._turn, configuration().checkpoint_steps)
        self._set_state(self._run.state())
        self._fetched = self._turn

    def close(self) -> None:
        """Ends the run; the state after its last step comes to this CPU."""
        if self._run is not None and not self._outputs:
            self.refresh()
            continue_at(self._run.step)
        if self._inference is not None:
            if self._turn == self.loader.steps:
                next(self._inference, None)  # behind its last step it hands over the state
            self._inference.close()
        self._stack.close()
        self.ended = True
        for tensor in () if self._traced is None else self._traced.state.values():
            tensor.owner = None

    def abandon(self, error: BaseException) -> None:
        """Ends the run after an error, without another word to the system than that."""
        self.ended = True
        stack, self._stack = self._stack, ExitStack()
        if self._inference is not None:
            self._inference.close()
        stack.__exit__(type(error), error, error.__traceback__)

    def _start(self, function: Callable[..., Any], args: Any, kwargs: Any) -> None:
        inputs = [x for x in pytree.tree_leaves(self.batch) if isinstance(x, DeviceTensor)]
        named = {name: tensor for model in models for name, tensor in model_state(model).items()}

        def step() -> Any:
            returned = function(*args, **kwargs)
            return returned, [call.arguments for call in self._closures]

        traced = self._traced = trace(step, inputs, named, models)
        mode = _mode_of(traced)
        _name_outputs(traced)
        from cgc.importers.aten import import_step
        from cs_runtime.traced_step import step_program

        module = import_step(traced.graph, mode=mode, seed=configuration().seed or 0)
        names = [f"input_{i}" for i in range(len(inputs))]
        program = step_program(module, mode, self.loader.batch_size, names)
        front_end = FrontEnd(self.loader, program, traced.state)
        if configuration().compile_only or configuration().validate_only:
            self._only_compile(front_end)
        elif mode == "train":
            self._train(front_end)
        else:
            settings = settings_of(self.loader, "eval")
            self._inference = inference.run(front_end, settings, self.loader.steps, self._set_state)

    def _only_compile(self, front_end: FrontEnd) -> None:
        from cs_runtime.compile import compile_program, validate_program

        validate = configuration().validate_only
        settings = settings_of(self.loader, "validate_only" if validate else "compile_only")
        (validate_program if validate else compile_program)(front_end, settings)
        self.ended = True

    def _train(self, front_end: FrontEnd) -> None:
        settings = settings_of(self.loader, "train")
        settings.model_dir.mkdir(parents=True, exist_ok=True)
        run = training_run(front_end, settings, self, current(), next_run(), Timeline())
        self._run = self._stack.enter_context(run)
        assert self._traced is not None
        for tensor in self._traced.state.values():
            tensor.owner = self

    def steps(self, outputs: StepOutputs) -> None:
        """The outputs of consecutive steps (`cs_runtime.program.Observer`)."""
        for row in range(outputs.count):
            self._outputs.append({name: values[row] for name, values in outputs.outputs.items()})

    def _take(self) -> None:
        """The outputs of the next step become the values of this turn."""
        if self._inference is not None:
            found = next(self._inference, None)
            if found is not None:
                self._outputs.append(found)
        elif self._run is not None and not self._outputs:
            self._run.advance(self._steps_ahead())
        if not self._outputs:
            raise StepError("the input ended before the last step of the loop")
        self._turn += 1
        self._show(self._outputs.popleft())

    def _steps_ahead(self) -> int:
        """Steps to run now: up to the next one behind which the state may be read."""
        left = self.loader.steps - self._turn
        every = configuration().checkpoint_steps
        if self._turn == 0 or not every:
            return min(left, RUN_AHEAD_STEPS) if self._turn else 1
        ahead = 1 if self._turn % every == 0 else every - self._turn % every
        return min(left, ahead, RUN_AHEAD_STEPS)

    def _show(self, outputs: Mapping[str, np.ndarray]) -> None:
        assert self._traced is not None
        named = dict(zip(self._traced.graph.outputs, self._traced.output_tensors, strict=True))
        self._values = {
            id(tensor): from_array(np.asarray(outputs[f"output_{name}"]), tensor.dtype)
            for name, tensor in named.items()
        }

    def _set_state(self, state: Mapping[str, np.ndarray]) -> None:
        assert self._traced is not None
        for name, tensor in self._traced.state.items():
            if name in state:
                tensor.load(from_array(np.asarray(state[name]), tensor.dtype))


def _mode_of(traced: TracedStep) -> Any:
    updated = [name for name in traced.graph.updates if not name.startswith("state.metric.")]
    return "train" if any(name.startswith(MODEL_PREFIX) for name in updated) else "eval"


def _name_outputs(traced: TracedStep) -> None:
    """The first number among the outputs is the loss."""
    graph = traced.graph
    for name, tensor in list(graph.outputs.items()):
        if not tensor.shape and tensor.dtype == "float32":
            graph.outputs = {("loss" if key == name else key): value for key, value in graph.outputs.items()}
            return
    raise StepError(
        "the step returns no float32 tensor without dimensions, expected the loss among what it returns"
    )


def settings_of(loader: DataLoader, command: Command) -> RunSettings:
    """The settings of a run of this process."""
    import os

    config = configuration()
    return RunSettings(
        mode=command,
        model_dir=Path(config.model_dir),
        batch_size=loader.batch_size,
        compile_dir=config.compile_dir,
        cs_ip=config.mgmt_address or os.environ.get("CS_IP"),
        steps=loader.steps,
        seed=config.seed,
        precision=config.precision,
    )


_loops: list[Loop] = []


def running() -> Loop | None:
    """The loop that this process is in."""
    return _loops[-1] if _loops else None


def batches_of(loader: DataLoader) -> Iterator[Any]:
    """One described batch for each step; none in a worker, which streams the real ones meanwhile."""
    task = current()
    if task.role == "worker":
        run_worker(loader, settings_of(loader, "train"), task, next_run())
        return
    loop = Loop(loader)
    _loops.append(loop)
    try:
        for _ in range(loader.steps):
            yield loop.batch
            if loop.ended:
                break
        loop.close()
    except BaseException as error:
        loop.abandon(error)
        raise
    finally:
        _loops.remove(loop)


def call_closure(loop: Loop, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Calls a step closure with values in place of tensors of the device."""
    values = pytree.tree_map_only(DeviceTensor, loop.value_of, (args, kwargs))
    return function(*values[0], **values[1])
