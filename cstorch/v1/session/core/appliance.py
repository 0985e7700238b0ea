"""The appliance of releases 1.6 to 1.9: a program records one step, compiles it, and receives its outputs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from types import SimpleNamespace, TracebackType
from typing import Any

import torch

from cstorch import saver
from cstorch.checkpoints import load
from cstorch.compatibility import announce_unused
from cstorch.compiled import models
from cstorch.config import change_configuration, configuration
from cstorch.distributed import ClusterConfig
from cstorch.errors import CheckpointError, ClosureError, SessionError
from cstorch.input import loader
from cstorch.iterations import checkpoint_steps_of
from cstorch.loop.execution import ClosureCall, name_loss
from cstorch.start import start_workers
from cstorch.step_count import continue_at
from cstorch.tracing.device import DeviceTensor, to_device
from cstorch.utils.nest import named_leaves
from cstorch.v1.session.core import modes
from cstorch.v1.session.environment import Tracker, env, state
from cstorch.v1.session.optim.lr_scheduler import follow_steps
from cstorch.v1.session.session import DataLoader
from cstorch.v1.session.steps import Steps, count_figures, current_steps, enter, leave, run_queued_closures

_WITHOUT_EFFECT = (
    "mgmt_namespace",
    "credentials_path",
    "mount_dirs",
    "python_paths",
    "transfer_processes",
    "job_labels",
    "job_time_sec",
    "disable_version_check",
)
"""Settings of a cluster that describe servers of the original's."""

ORIGINAL_ADDRESS = "cluster-server.cerebras.com:443"
"""The default of programs of the original, which names no system of this toolkit."""


class ApplianceMode:
    """Runs the step that the program has recorded, on the CS system of a configuration.

    Args:
        workdir: Folder for files of the run. Programs of releases 1.6 and 1.7 give all their parameters, of
            which `runconfig` describes the cluster.
        compile_dir: Folder for artifacts of the compiler; a function that returns the initial state in
            release 1.6.
        cs_config: `cerebras_appliance.CSConfig.CSConfig`, or anything with its attributes.
        precision_opt_level: Without effect.
        use_cs_grad_accum: Whether gradients of micro-batches may be added up, which changes no number here.
        settings: Others of the original, without effect.

    Attributes:
        cs_config: As given, for the program to read. Its `num_csx` is 1, by which programs divide their loss:
            several systems share one batch here, and the mean is that of the whole batch.
        tracker_execute: Logs how long parts of the program take.
    """

    def __init__(
        self,
        workdir: Any = None,
        compile_dir: Any = None,
        cs_config: Any = None,
        precision_opt_level: int | None = None,
        use_cs_grad_accum: bool = False,
        **settings: Any,
    ) -> None:
        if not env().appliance:
            raise SessionError(
                "ApplianceMode is made before initialize(appliance=True), expected it after that"
            )
        self._params = workdir if isinstance(workdir, Mapping) else {}
        self._initial_state: Callable[[], Any] | None = compile_dir if callable(compile_dir) else None
        self.cs_config = self._cs_config = cs_config or _cluster_of(self._params.get("runconfig", {}))
        self.tracker_execute = Tracker()
        self._outputs: dict[str, DeviceTensor] = {}
        self._weights: dict[str, torch.Tensor] = {}
        state().queues_closures = True
        _choose_cluster(self.cs_config)
        start_workers()

    def build_worker_image(self, should_skip: bool = False) -> AbstractContextManager[None]:
        """Nothing around the body: workers have the program's own environment."""
        return nullcontext()

    def compile(self, *given: Any, validate_only: bool | None = None) -> bool:
        """End the step that is recorded, and compile it where `initialize` said `compile_only`.

        Args:
            given: The outputs of the step, of which `state()` knows itself; samples in a batch; in release
                1.6 a fabric; and last whether to stop where it is known that the step can be compiled.
            validate_only: The last of these, by name.

        Raises:
            SessionError: Nothing was recorded.
            cgc.errors.CompileError: The step cannot be compiled.
        """
        steps = _steps("compile()")
        outputs = {name: x for name, x in state().outputs.items() if isinstance(x, DeviceTensor)}
        loss = steps.end_step(outputs.values())
        self._outputs = outputs if loss is None else {"loss": loss, **outputs}
        run_queued_closures()
        if validate_only or (given and given[-1] is True):
            change_configuration(compile_only=False, validate_only=True)
        config = configuration()
        if config.compile_only or config.validate_only:
            steps.compile_step()
            end_steps(None)
        return True

    def execute(
        self,
        input_fn: Callable[..., Any],
        *given: Any,
        initial_checkpoint_file: Any = None,
        checkpoint_steps: int | None = None,
        cleanup_stack: ExitStack | None = None,
        send_weights_grouper: Any = None,
    ) -> None:
        """Bring the compiled step onto the system, and run it for the first time.

        Args:
            input_fn: Makes the loader; every worker calls it.
            given: Arguments of `input_fn` as a list and a dict, since release 1.8 (the parameters of the
                program else); samples in a batch; number of steps; after how many steps the program writes
                checkpoints; mode; file with the initial state.
            initial_checkpoint_file: The last of these, by name.
            checkpoint_steps: The third of these, by name.
            cleanup_stack: Ends the run where the program leaves it.
            send_weights_grouper: Groups the tensors of the initial state; the closure of a group may prune
                them by NaN. They stay pruned, and checkpoints have NaN there.

        Raises:
            SessionError: Nothing was compiled, or a tensor is pruned that was not marked as sparse.
            CheckpointError: The initial state does not fit the model.
            cs_system.errors.CsSystemError: The system is not there or busy; a worker did not come.
        """
        arguments, rest = ((self._params,), given)
        if given and isinstance(given[0], Sequence):
            arguments, rest = tuple(given[0][0]), given[1:]
        _, total_steps, *more = rest
        every = checkpoint_steps if checkpoint_steps is not None else more[0] if more else 0
        mode = more[1] if len(more) > 1 else self._mode()
        initial = initial_checkpoint_file if initial_checkpoint_file is not None else (more[2:3] or [None])[0]
        steps = _steps("execute()")
        steps.load_state(self._initial_values(initial), mode, send_weights_grouper)
        steps.run(loader.DataLoader(input_fn, *arguments), total_steps, every, mode)
        if cleanup_stack is not None:
            cleanup_stack.push(_end_with)

    def receive_activations(self, iteration: int) -> dict[str, torch.Tensor]:
        """Wait for the outputs of a step, counted from 0, and call the callbacks of the program.

        Returns:
            The loss, and the other outputs of the step, by name.
        """
        steps = _steps("receive_activations()")
        steps.advance(iteration + 1)
        for callback in state().activation_callbacks:
            callback()
        return {name: steps.read(tensor) for name, tensor in self._outputs.items()}

    @property
    def output_names(self) -> list[str]:
        """Names of the outputs of a step, the loss first."""
        return list(self._outputs)

    def save_weights(
        self, weights: Any, file_name: Any, iteration: int, duplicate_params_map: Any = None
    ) -> None:
        """Write the state after a step, counted from 0, into a checkpoint whose nest the program has saved.

        Args:
            weights: The state of the program, as a nest, or as pairs of a name and a tensor.
            file_name: The checkpoint.
            iteration: The step; it is the last one whose outputs the program has received.
            duplicate_params_map: Names of the same weight; each has it in `weights`.
        """
        leaves = named_leaves(weights) if isinstance(weights, Mapping) else dict(weights)
        writer, steps = saver.PyTorchH5Saver(), _steps("save_weights()")
        for name, value in leaves.items():
            writer.save_tensor(file_name, name, steps.saved(name, value))

    def save_dataloader_checkpoint(self, step: int) -> None:
        """Nothing: the number of steps in a checkpoint is the position in the input."""

    @property
    def weight_names(self) -> dict[str, str]:
        """Names of weights by those that the program has given them: the same."""
        return {name: name for name in self._weights}

    def receive_weights(self, state_dict: Any, iteration: int) -> dict[str, Any]:
        """Return the state after a step, counted from 0, by names that begin below its parts."""
        steps = _steps("receive_weights()")
        self._weights = {
            name.partition(".")[2]: steps.saved(name, x)
            for name, x in named_leaves(state_dict).items()
            if isinstance(x, DeviceTensor)
        }
        return self._weights

    def done(self) -> None:
        """End the run."""
        end_steps(None)

    def _mode(self) -> str:
        return str(self._params.get("runconfig", {}).get("mode", modes.TRAIN))

    def _initial_values(self, file_name: Any) -> dict[str, Any]:
        if file_name is not None:
            return named_leaves(load(file_name, map_location="cpu"))
        return named_leaves(self._initial_state()) if self._initial_state is not None else {}


def _steps(caller: str) -> ApplianceSteps:
    steps = appliance_steps()
    if steps is None:
        raise SessionError(
            f"ApplianceMode.{caller} is used outside of a loop over cbtorch.dataloader(), expected it in the "
            "loop"
        )
    return steps


def _end_with(
    kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
) -> None:
    end_steps(error)


def _cluster_of(runconfig: Mapping[str, Any]) -> Any:
    """The cluster that parameters of a program describe."""
    given = {name: runconfig[name] for name in vars(ClusterConfig()) if name in runconfig}
    return ClusterConfig(**{**given, "max_wgt_servers": runconfig.get("num_wgt_servers")})


def _choose_cluster(cs_config: Any) -> None:
    """Take what has an effect here from the description of a cluster, and name what has none."""
    given = {name: getattr(cs_config, name, None) for name in _WITHOUT_EFFECT}
    announce_unused("ApplianceMode", given, {"transfer_processes": 5})
    names = ("mgmt_address", "num_csx", "num_workers_per_csx", "max_wgt_servers")
    settings = {name: value for name in names if (value := getattr(cs_config, name, None))}
    if settings.get("mgmt_address") == ORIGINAL_ADDRESS:
        del settings["mgmt_address"]
    if env().weight_streaming_mode:
        settings["execution"] = "weight_streaming"
    change_configuration(**settings)
    cs_config.num_csx = 1


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
