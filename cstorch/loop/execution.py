"""Runs of a recorded step on the CS system: the outputs of consecutive steps, and the state."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal, Protocol

import numpy as np
from torch import nn

from cs_runtime import files, inference
from cs_runtime.options import Command, RunSettings
from cs_runtime.program import State, StepProgram
from cs_runtime.progress import Timeline, begin_training
from cs_runtime.session import next_run
from cs_runtime.training import TrainResult, record_failure, record_success, training_run
from cs_system.client import StepOutputs
from cs_toolkit.step import GLOBAL_STEP, MODEL_STATE, Mode
from csrun.jobs.progress import Epochs
from cstorch.errors import StepError
from cstorch.input.analysis import log_report
from cstorch.input.loader import InputLoader
from cstorch.input.random_state import seed_of_steps
from cstorch.input.workers import job_files
from cstorch.job import task
from cstorch.loop.resources import destination, lock_directory, system_address
from cstorch.program import Program, configuration
from cstorch.tracing.precision import precision_of
from cstorch.tracing.state import steps_done
from cstorch.tracing.values import to_array

log = logging.getLogger("cstorch")

if TYPE_CHECKING:
    from cstorch.tracing.step import TracedStep

Ending = Literal["completed", "requeued", "left"]
"""How a run has ended without an error: after its last step, for a requeue of the job, or by `break`."""

Outputs = Mapping[str, np.ndarray]
"""The outputs of one step, by name."""


class Execution(Protocol):
    """A run of a step on the system."""

    def take(self, ahead: int) -> Outputs | None:
        """Return the outputs of the next step; None if the input has ended.

        Args:
            ahead: Number of steps that the system may run before the program reads its state, including this
                one.
        """
        ...

    def state(self, ahead: int = 0) -> State | None:
        """Return the state after the step of the last outputs; None if the system is ahead of them.

        Args:
            ahead: Number of further steps that the system may compute from now on.
        """
        ...

    def close(self, error: BaseException | None = None, ended: Ending = "completed") -> None:
        """End the run and release the system."""
        ...


class FrontEnd:
    """The front end of a recorded step (`cs_runtime.program.FrontEnd`)."""

    def __init__(self, loader: InputLoader, step: RecordedStep) -> None:
        self.inputs, self.input_facts, self.batches = loader.inputs, loader.input_facts, loader.batches
        self.sharding, self.part = loader.sharding, loader.part
        self._step = step

    def program(self) -> StepProgram:
        """Return the program to compile."""
        return self._step.program

    def check_checkpoint(self) -> None:
        """Check nothing: the program has loaded its checkpoint, which PyTorch compares with the model."""

    def initial_state(self) -> State:
        """Return the values of the state tensors, and the number of completed steps."""
        values = {name: to_array(tensor.to_host()) for name, tensor in self._step.traced.state.items()}
        return {**values, GLOBAL_STEP: np.asarray(steps_done(), np.int64)}

    @property
    def saves_between_steps(self) -> bool:
        """False: `save` does nothing."""
        return False

    def save(self, step: int, state: Mapping[str, np.ndarray]) -> bool:
        """Save nothing: PyTorch programs write their own checkpoints."""
        return False


class Training:
    """A training run on the system, which computes further steps while the program uses their outputs."""

    def __init__(
        self, front_end: FrontEnd, settings: RunSettings, number: int, epochs: Epochs | None = None
    ) -> None:
        files.check_writable(settings.model_dir)
        self._settings, self._timeline = settings, Timeline()
        self._spans: Iterator[StepOutputs] = iter(())
        self._rows: deque[Outputs] = deque()
        self._ahead = 0
        with ExitStack() as stack:
            stack.enter_context(lock_directory())
            stack.push(self._on_exit)
            run = training_run(front_end, settings, self, task(), number, self._timeline)
            self._run = stack.enter_context(run)
            first = self._run.first_step
            last = None if settings.steps is None else first + settings.steps
            begin_training(settings.model_dir, first, last, resumes=False, epochs=epochs)
            self._phase = stack.enter_context(self._timeline.phase("training"))
            self._stack = stack.pop_all()

    def figures(self) -> dict[str, float | None]:
        """Return the seconds of compile and programming, and the estimated samples per second."""
        estimates = self._run.session.compiled.artifact.estimates
        return {
            "compile_s": self._timeline.seconds("compile"),
            "programming_s": self._timeline.seconds("program the fabric"),
            "estimated_samples_per_s": None if estimates is None else estimates.samples_per_s,
        }

    def _on_exit(self, kind: object, error: BaseException | None, trace: object) -> None:
        if error is not None:
            self.record_failure(error)

    def record_failure(self, error: BaseException) -> None:
        """Record in the files of the run the error that has ended it."""
        record_failure(self._settings, self._timeline, error)

    def begin(self, ahead: int) -> None:
        """Let the system compute the next steps, unless it does; then `state` returns None."""
        if not self._ahead:
            self._spans, self._ahead = self._run.iterate_outputs(ahead), ahead

    def take(self, ahead: int) -> Outputs | None:
        """Return the outputs of the next step, of which several come from the system together."""
        self.begin(ahead)
        while not self._rows and next(self._spans, None) is not None:
            pass
        if not self._rows:
            return None
        self._ahead -= 1
        if not self._ahead:
            next(self._spans, None)  # receive the end of this span of steps
        return self._rows.popleft()

    def steps(self, outputs: StepOutputs) -> None:
        """Take the outputs of consecutive steps (`cs_runtime.program.Observer`)."""
        columns = outputs.outputs.items()
        self._rows.extend({name: values[row] for name, values in columns} for row in range(outputs.count))

    def state(self, ahead: int = 0) -> State | None:
        """Return the state; None while the system is ahead of the program.

        Args:
            ahead: Number of further steps. They run while the state is transferred, or a large one after it.
        """
        if self._ahead:
            return None
        kept = self._run.session.reservation.snapshot() if ahead else None
        if kept is not None:
            self.begin(ahead)
        return self._run.state(kept)

    def close(self, error: BaseException | None = None, ended: Ending = "completed") -> None:
        """End the run, and record its result."""
        if error is not None:
            self._stack.__exit__(type(error), error, error.__traceback__)
            return
        self._stack.close()
        progress = self._run.progress
        result = TrainResult(
            progress.step,
            progress.loss,
            progress.samples,
            self._phase.seconds or 0.0,
            self._run.input_ended,
            requeued=ended == "requeued",
            left=ended == "left",
        )
        record_success(self._settings, self._timeline, self._run.session, task(), progress, result)


class Evaluation:
    """An evaluation, whose metrics are available after its last step."""

    def __init__(self, front_end: FrontEnd, settings: RunSettings, steps: int, number: int) -> None:
        self._outputs = inference.run(front_end, settings, steps, self._keep_state, number)
        self._left = steps
        self._state: State | None = None

    def _keep_state(self, state: State) -> None:
        self._state = state

    def take(self, ahead: int) -> Outputs | None:
        """Return the outputs of the next step."""
        self._left -= 1
        return next(self._outputs, None)

    def state(self, ahead: int = 0) -> State | None:
        """Return the state after the last step; None before that."""
        if not self._left:
            next(self._outputs, None)  # the state follows the outputs of the last step
        return self._state

    def close(self, error: BaseException | None = None, ended: Ending = "completed") -> None:
        """End the evaluation."""
        self._outputs.close()


def start_run(
    loader: InputLoader,
    step: RecordedStep,
    steps: int,
    *,
    can_extend: bool = False,
    epochs: Epochs | None = None,
) -> Execution | None:
    """Load a step onto the system and start its run; None if the program is only compiled or validated.

    Args:
        loader: The input.
        step: The step to run.
        steps: Number of steps.
        can_extend: The program may add steps to a training run, so the input must not end before.
        epochs: Epochs of the training run.

    Raises:
        NoSystemError: No address of a system is known.
        cs_system.errors.CsSystemError: The system is unavailable or busy, or a worker did not connect.
    """
    front_end, config = FrontEnd(loader, step), configuration()
    if step.mode == "train" and not loader.reported:
        loader.reported = True
        log_report(loader)
    if config.compile_only or config.validate_only:
        from cs_runtime.compile import compile_or_validate  # late: workers have no compiler

        command: Command = "validate_only" if config.validate_only else "compile_only"
        log.info("%s", destination().describe(command, fabric=config.fabric))
        compile_or_validate(front_end, _settings(loader, step, command))
        return None
    mode: Command = "train" if step.mode == "train" else "eval"
    log.info("%s", destination().describe(mode))
    settings = _settings(loader, step, mode, None if can_extend else steps)
    number = next_run()
    # One worker reads the whole input of an evaluation. In a job without a launcher that is this process.
    has_workers = loader.sends_function and task().num_tasks > 1
    if has_workers and (step.mode == "train" or Program.current().local_workers is None):
        job_files(task()).write(number, loader.transfer(settings))
    if step.mode == "train":
        return Training(front_end, settings, number, epochs)
    return Evaluation(front_end, settings, steps, number)


def _settings(
    loader: InputLoader, step: RecordedStep, command: Command, steps: int | None = None
) -> RunSettings:
    """Return the settings of a run on the chief, which also has the precision of the step."""
    settings = run_settings(loader, command, steps)
    return replace(
        settings, options=replace(settings.options, precision=precision_of(step.traced.graph.half))
    )


def run_settings(loader: InputLoader, command: Command, steps: int | None = None) -> RunSettings:
    """Return the settings of a run of this process."""
    config = configuration()
    return RunSettings(
        mode=command,
        model_dir=config.run_dir or config.model_dir,
        batch_size=loader.batch_size,
        compile_dir=config.compile_dir,
        cs_ip=system_address(),
        steps=steps,
        seed=config.seed,
        fabric=config.fabric,
        options=config.options,
        record_dir=config.model_dir,
    )


@dataclass(frozen=True)
class ClosureCall:
    """A call of a step closure within the step, which is repeated after every step.

    Attributes:
        function: The function of the program.
        arguments: Positional and keyword arguments, which contain tensors of the device.
    """

    function: Callable[..., Any]
    arguments: tuple[tuple[Any, ...], dict[str, Any]]


@dataclass(frozen=True, eq=False)
class RecordedStep:
    """A recorded step, which any loop can run again.

    Attributes:
        traced: Graph, state and outputs.
        returned: Return value of the step function.
        closures: Calls of step closures, in their order in the step.
        batch_size: Samples in a batch.
        models: Models whose parameters are its state.
    """

    traced: TracedStep
    returned: Any
    closures: Sequence[ClosureCall]
    batch_size: int
    models: Sequence[nn.Module]

    @property
    def mode(self) -> Mode:
        """The mode: "train" if the step changes a parameter or a buffer of a model, else "eval"."""
        updated = self.traced.graph.updates
        return "train" if any(name.startswith(MODEL_STATE) for name in updated) else "eval"

    @property
    def counts(self) -> bool:
        """True if the steps belong to a training run; an evaluation may change buffers too."""
        state = self.traced.state
        return any(model.training for model in self.models) or any(
            isinstance(state[name], nn.Parameter) for name in self.traced.graph.updates if name in state
        )

    @cached_property
    def program(self) -> StepProgram:
        """The step as a program for the compiler.

        Raises:
            cgc.errors.GraphImportError: The step uses unsupported operations.
        """
        from cgc.importers.aten import check_output, import_step  # late: workers have no compiler
        from cs_runtime.input_source import describe_function
        from cs_runtime.program import ProgramCheck
        from cs_runtime.step_program import step_program

        graph, mode = self.traced.graph, self.mode
        module = import_step(graph, mode=mode, seed=seed_of_steps())
        names = [f"input_{i}" for i in range(len(graph.inputs))]
        models = ", ".join(describe_function(model) for model in self.models)
        checks = [
            ProgramCheck(f"output_{check_output(number)}", check.error)
            for number, check in enumerate(graph.checks)
        ]
        return step_program(module, mode, self.batch_size, names, models, checks)


def name_loss(step: RecordedStep) -> None:
    """Rename the first scalar output of a step to "loss", which a run looks for.

    Raises:
        StepError: A training step has no scalar output.
    """
    graph = step.traced.graph
    # State follows the returned values. The compiler refuses float64 with the lines that it comes from.
    returned = {name: tensor for name, tensor in graph.outputs.items() if name.isdigit()}
    numbers = (name for name, x in returned.items() if not x.shape and x.dtype in ("float32", "float64"))
    loss = next(numbers, None)
    if loss is not None:
        graph.outputs = {("loss" if name == loss else name): value for name, value in graph.outputs.items()}
    elif step.mode == "train":
        got = ", ".join(f"{x.dtype}{list(x.shape)}" for x in returned.values()) or "no tensor of the device"
        raise StepError(
            f"the step returns {got}, expected the loss among it, a float32 tensor without dimensions: "
            "return it, and call .float() or .mean() where that is missing"
        )
