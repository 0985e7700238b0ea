"""The calls of an estimator on the CS system: compile, train, evaluate and predict."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

import cs_runtime.inference
import cs_runtime.training
from cs_runtime import tasks
from cs_runtime.embedded_system import EmbeddedSystem, log_name, shared_system
from cs_runtime.exits import record_failures
from cs_runtime.options import Command, RunSettings
from cs_runtime.program import MeasuredFrontEnd
from cs_runtime.progress import StepEvents
from cs_runtime.run_files import to_plain_data, write_params
from cs_toolkit.garbage import infrequent_collection, leave_at_exit
from cs_toolkit.messages import Message
from estimator.backend import Batches, Setup
from estimator.checkpoints import checkpoint_step, resolve_checkpoint
from estimator.config import MULTI_MODEL_STACK_KEY, CSRunConfig
from estimator.cs.hooks import HOOK_OUTPUTS, StepHooks, is_stop_at_step_hook
from estimator.cs.program import prediction_name
from estimator.cs.state import StateOptions
from estimator.errors import UnsupportedOnCsError
from estimator.input.analysis import log_report
from estimator.input.dataset import InputSource
from estimator.spec import ModeKeys, WarmStartSettings, validate_hooks
from estimator.summaries import TENSOR_SUMMARIES, EventWriter, Summaries, report_evaluation

if TYPE_CHECKING:
    from cs_system.client import StepOutputs

log = logging.getLogger("estimator")

_READ_OF_CS_CONFIG = frozenset({"use_cbfloat16"})
_READ_OF_STACK_PARAMS = frozenset({"config.target_num_replicas", MULTI_MODEL_STACK_KEY})


class EstimatorFrontEnd(MeasuredFrontEnd, Protocol):
    """The TensorFlow side of a run: a `model_fn` or a Keras model, and its input."""

    @property
    def batch_size(self) -> int:
        """Number of samples in a batch."""
        ...

    @property
    def hooks(self) -> StepHooks:
        """The session hooks of the run; the first use traces the step."""
        ...

    @property
    def summaries(self) -> Summaries | None:
        """The summaries of a training run; None for a model that has none."""
        ...

    @property
    def graph(self) -> Any:
        """The graph of the model, for TensorBoard."""
        ...

    def close(self) -> None:
        """Close the TensorFlow sessions."""
        ...


# Makes a front end from the input of a run, the options of its state, and its session hooks.
MakeFrontEnd = Callable[[InputSource, StateOptions, tuple[Any, ...]], EstimatorFrontEnd]


class CsBackend:
    """Runs the calls of an estimator on the CS system; each call uses all tasks of a job.

    Args:
        setup: The setup of the estimator.
        make_front_end: Makes the TensorFlow side of a run.
        warm_start: The source of initial values if there is no checkpoint.
    """

    def __init__(
        self,
        setup: Setup,
        make_front_end: MakeFrontEnd,
        warm_start: WarmStartSettings | None = None,
    ) -> None:
        self._setup = setup
        self._make_front_end = make_front_end
        self._warm_start = warm_start

    @infrequent_collection()
    def compile(self, input_fn: Callable[..., Any], mode: str, *, validate_only: bool) -> None:
        """Compile or validate the step, for the fabric of the system at `cs_ip` if there is one."""
        if not tasks.is_chief():
            tasks.log_idle("the chief compiles")
            return
        from cs_runtime.compile import compile_or_validate  # late: workers have no compiler

        log.info("TF_CONFIG environment variable: {}")
        command: Command = "validate_only" if validate_only else "compile_only"
        self._log_place(command)
        warn_of_unused_options(self._setup.config)
        write_params(self._setup.model_dir, self._setup.params)
        source = self._setup.compile_input(input_fn, mode)
        log_report(source, shared=mode == ModeKeys.TRAIN)
        front_end = self._make_front_end(source, StateOptions(), ())
        compile_or_validate(front_end, self._settings(front_end, command))
        leave_at_exit()

    def train(
        self,
        input_fn: Callable[..., Any],
        hooks: Sequence[Any] | None,
        steps: int | None,
        max_steps: int | None,
        saving_listeners: Sequence[Any] | None,
    ) -> None:
        """Train `steps` more steps, or to the global step `max_steps`; in a worker, stream batches."""
        own_hooks = validate_hooks("hooks", hooks)
        if steps is None and max_steps is None and not any(map(is_stop_at_step_hook, own_hooks)):
            raise UnsupportedOnCsError(
                "train() on the CS system needs the number of steps, got neither steps nor max_steps; "
                "set one of them, or pass a StopAtStepHook"
            )
        self._log_start("train")
        setup = self._setup
        source = setup.training_input(input_fn)
        if tasks.is_chief():
            log_report(source)
            write_params(setup.model_dir, setup.params)
        options = StateOptions(None, self._warm_start, tuple(saving_listeners or ()))
        with closing(self._make_front_end(source, options, own_hooks)) as front_end:
            settings = self._settings(front_end, "train", steps, max_steps)
            with EventWriter(setup.model_dir) as writer:
                events = StepEvents(writer, setup.config.save_summary_steps, settings.batch_size)
                observer = _Observer(events, writer, front_end, setup.config.save_summary_steps or 0)
                cs_runtime.training.train(front_end, settings, observer, observer.adjust_settings)
                observer.end()

    def evaluate(
        self,
        input_fn: Callable[..., Any],
        steps: int | None,
        hooks: Sequence[Any] | None,
        checkpoint_path: str | None,
        name: str | None,
    ) -> dict[str, Any]:
        """Return the metrics over `steps` batches; empty in a worker.

        The system accumulates the totals of the metrics; this host computes their values from the last
        totals. A host call that the system does not support runs on this host, after every step.
        """
        if steps is None:
            raise UnsupportedOnCsError(
                "evaluate() on the CS system needs the number of steps, got None; set steps"
            )
        own_hooks = validate_hooks("hooks", hooks)
        self._log_start("eval")
        source = self._setup.whole_input(input_fn, ModeKeys.EVAL)
        with closing(self._make_front_end(source, StateOptions(checkpoint_path), own_hooks)) as front_end:
            results = cs_runtime.inference.evaluate(front_end, self._settings(front_end, "eval"), steps)
            if tasks.is_chief():
                front_end.hooks.end()
        if not results:
            return {}
        model_dir = self._setup.model_dir
        results["global_step"] = checkpoint_step(resolve_checkpoint(checkpoint_path, model_dir))
        return report_evaluation(model_dir, results, name)

    def predict(
        self,
        input_fn: Callable[..., Any],
        hooks: Sequence[Any] | None,
        checkpoint_path: str | None,
        num_samples: int | None,
    ) -> Batches:
        """Yield predictions until they cover `num_samples`, or for all of the input; none in a worker."""
        own_hooks = validate_hooks("hooks", hooks)
        self._log_start("predict")
        source = self._setup.whole_input(input_fn, ModeKeys.PREDICT)
        with closing(self._make_front_end(source, StateOptions(checkpoint_path), own_hooks)) as front_end:
            steps = None if num_samples is None else -(-num_samples // front_end.batch_size)
            settings = self._settings(front_end, "predict")
            with closing(cs_runtime.inference.run(front_end, settings, steps)) as every_output:
                for outputs in every_output:
                    stop = front_end.hooks.show_step(front_end.hooks.first_step, outputs)
                    named = {prediction_name(name): np.asarray(value) for name, value in outputs.items()}
                    yield {name: value for name, value in named.items() if name is not None}
                    if stop:
                        break
            if tasks.is_chief():
                front_end.hooks.end()

    def _log_start(self, command: Command) -> None:
        log.info("TF_CONFIG environment variable: %s", json.dumps(tasks.job_config()))
        self._log_place(command)
        if tasks.is_chief():
            warn_of_unused_options(self._setup.config)
        if self._setup.destination.kind == "embedded":
            self._embedded_system()  # it starts while the step is traced

    def _log_place(self, command: Command) -> None:
        log.info("%s", self._setup.destination.describe(command, self._setup.config.system_name))

    def _embedded_system(self) -> EmbeddedSystem:
        wafers = self._setup.options.share.wafers
        return shared_system(self._setup.model_dir / log_name(wafers), wafers)

    def _settings(
        self,
        front_end: EstimatorFrontEnd,
        command: Command,
        steps: int | None = None,
        last_step: int | None = None,
    ) -> RunSettings:
        setup, config = self._setup, self._setup.config
        address = setup.destination.address
        if setup.destination.kind == "embedded":
            address = self._embedded_system().address
        return RunSettings(
            mode=command,
            model_dir=setup.model_dir,
            batch_size=self._batch_size(front_end),
            compile_dir=setup.compile_dir,
            cs_ip=address,
            steps=steps,
            last_step=last_step,
            save_every_steps=config.save_checkpoints_steps,
            save_every_s=config.save_checkpoints_secs,
            log_every_steps=config.log_step_count_steps,
            seed=config.tf_random_seed,
            options=setup.options,
            params=to_plain_data(setup.params),
        )

    def _batch_size(self, front_end: EstimatorFrontEnd) -> int:
        """Return the batch size; this builds the input, so errors of the input are recorded here."""
        if not tasks.is_chief():
            return front_end.batch_size
        with record_failures(self._setup.artifact_dir):
            return front_end.batch_size


class _Observer:
    """Writes the events of a training run, and shows every step to the session hooks.

    Args:
        events: Writer of the outputs of steps.
        writer: Writer of the event file.
        front_end: Has the hooks and summaries, which are used in the chief only, after the step is traced.
        every_steps: Steps between two summaries; 0 writes none.
    """

    def __init__(
        self, events: StepEvents, writer: EventWriter, front_end: EstimatorFrontEnd, every_steps: int
    ) -> None:
        self._events = events
        self._writer = writer
        self._front_end = front_end
        self._every_steps = every_steps
        self._hooks: StepHooks | None = None

    def adjust_settings(self, settings: RunSettings) -> RunSettings:
        """Return the settings of the run with the last step and the checkpoint interval that hooks set."""
        self._hooks = self._front_end.hooks
        if self._hooks.first_step == 0 and self._every_steps:
            self._writer.add_graph(self._front_end.graph)
        return self._hooks.adjust_settings(settings)

    def steps(self, outputs: StepOutputs) -> bool:
        """Record the outputs of consecutive steps; return True if a hook asks to stop."""
        values = outputs.outputs
        shown = {name: rows for name, rows in values.items() if name.startswith(TENSOR_SUMMARIES)}
        self._write_tensor_summaries(outputs, shown)
        every_step = replace(
            outputs, outputs={n: rows for n, rows in values.items() if not n.startswith(TENSOR_SUMMARIES)}
        )
        numbers = {n: rows for n, rows in every_step.outputs.items() if not n.startswith(HOOK_OUTPUTS)}
        self._events.steps(replace(outputs, outputs=numbers))
        return self._hooks is not None and self._hooks.show_steps(every_step)

    def end(self) -> None:
        """End the hooks after a successful run."""
        if self._hooks is not None:
            self._hooks.end()

    def _write_tensor_summaries(self, outputs: StepOutputs, shown: dict[str, np.ndarray]) -> None:
        """Write histograms, images and other summaries of tensors, of the steps at which they are due."""
        summaries = self._front_end.summaries
        if not shown or summaries is None:
            return
        first = outputs.first_step - outputs.first_step % self._every_steps + self._every_steps
        for row in range(len(next(iter(shown.values())))):
            values = {name.removeprefix("output_"): rows[row] for name, rows in shown.items()}
            for summary in summaries.serialize(values):
                self._writer.add_summary(first + row * self._every_steps, summary)


def warn_of_unused_options(config: CSRunConfig) -> None:
    """Warn, once, of options of the original stack that a program sets and that have no effect here."""
    unused = [
        *_unused_options("cs_config", config.cs_config, _READ_OF_CS_CONFIG),
        *_unused_options("stack_params", config.stack_params, _READ_OF_STACK_PARAMS),
    ]
    if unused:
        _warn_of_options(", ".join(unused))


def _unused_options(name: str, given: Any, read: Collection[str]) -> list[str]:
    """Return the dotted names of options that are set but not read."""

    def is_read(path: str) -> bool:
        return any(path == known or path.startswith(f"{known}.") for known in read)

    return [f"{name}.{path}" for path in _option_paths(given) if not is_read(path)]


def _option_paths(given: Any) -> Iterator[str]:
    """Yield the dotted names of the values in a message or mapping that are neither false nor empty."""
    values = given.as_dict() if isinstance(given, Message) else given
    if not isinstance(values, Mapping):
        return
    for name, value in values.items():
        inner = list(_option_paths(value))
        if inner:
            yield from (f"{name}.{path}" for path in inner)
        elif value and not isinstance(value, Message | Mapping):
            yield str(name)


@cache
def _warn_of_options(names: str) -> None:
    log.warning("%s: options of the original stack, without effect here", names)
