"""The appliance of releases 1.6 to 1.9: a program records one step, compiles it, and receives its outputs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from types import TracebackType
from typing import Any

import torch

from cs_runtime.options import ORIGINAL_ADDRESS
from cstorch.checkpoints import load
from cstorch.compatibility import log_unused
from cstorch.core import modes
from cstorch.distributed.cluster import ClusterConfig
from cstorch.errors import SessionError
from cstorch.loop.loaders import DataLoader
from cstorch.loop.resources import start_workers
from cstorch.program import Program, configuration
from cstorch.saver import PyTorchH5Saver
from cstorch.tracing.device import DeviceTensor
from cstorch.utils.helpers import named_leaves
from cstorch.v1.session.environment import Tracker, env, state
from cstorch.v1.session.session import ApplianceSteps, appliance_steps, end_steps
from cstorch.v1.session.steps import run_queued_closures

# Settings of servers of the original's cluster.
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


class ApplianceMode:
    """Runs the step that the program has recorded, on the CS system of a configuration.

    Args:
        workdir: Folder for files of the run. Programs of releases 1.6 and 1.7 give all their parameters, of
            which `runconfig` describes the cluster.
        compile_dir: Directory for compile artifacts; in release 1.6, a function that returns the initial
            state.
        cs_config: `cerebras_appliance.CSConfig.CSConfig`, or an object with its attributes.
        precision_opt_level: Without effect.
        use_cs_grad_accum: Without effect on results: allow the gradients of micro-batches to be accumulated.
        settings: Further settings of the original, without effect.

    Attributes:
        cs_config: The given configuration. Its `num_csx`, by which programs divide their loss, is set to 1:
            several systems share one batch here, and a mean is that of the whole batch.
        tracker_execute: Logs the duration of parts of the program.
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
                "ApplianceMode is created before initialize(appliance=True), expected it after that"
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
        """Return an empty context: workers have the program's environment."""
        return nullcontext()

    def compile(self, *given: Any, validate_only: bool | None = None) -> bool:
        """End the step that is being recorded, and compile it after `initialize(compile_only=True)`.

        Args:
            given: The outputs of the step, which `state()` already has; samples in a batch; in release 1.6 a
                fabric; and last, whether to only check that the step can be compiled.
            validate_only: The last of these, by name.

        Raises:
            SessionError: No step was recorded.
            cgc.errors.CompileError: The step cannot be compiled.
        """
        steps = _steps("compile()")
        outputs = {name: x for name, x in state().outputs.items() if isinstance(x, DeviceTensor)}
        loss = steps.end_step(outputs.values())
        self._outputs = outputs if loss is None else {"loss": loss, **outputs}
        run_queued_closures()
        if validate_only or (given and given[-1] is True):
            Program.current().change_configuration(compile_only=False, validate_only=True)
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
        """Load the compiled step onto the system, and run it for the first time.

        Args:
            input_fn: Returns the loader; every worker calls it.
            given: Arguments of `input_fn` as a list and a dict, since release 1.8 (before, it gets the
                parameters of the program); samples in a batch; number of steps; interval of checkpoints;
                mode; file with the initial state.
            initial_checkpoint_file: The last of these, by name.
            checkpoint_steps: The interval of checkpoints, by name.
            cleanup_stack: Ends the run when the program leaves it.
            send_weights_grouper: Groups the tensors of the initial state; the closure of a group may prune
                them by NaN. They stay pruned, and checkpoints have NaN there.

        Raises:
            SessionError: Nothing was compiled, or a tensor is pruned that was not marked as sparse.
            CheckpointError: The initial state does not fit the model.
            cs_system.errors.CsSystemError: The system is unavailable or busy, or a worker did not connect.
        """
        arguments, rest = ((self._params,), given)
        if given and isinstance(given[0], Sequence):
            arguments, rest = tuple(given[0][0]), given[1:]
        _, total_steps, *more = rest
        every = checkpoint_steps if checkpoint_steps is not None else more[0] if more else 0
        default_mode = self._params.get("runconfig", {}).get("mode", modes.TRAIN)
        mode = str(more[1] if len(more) > 1 else default_mode)
        initial = initial_checkpoint_file if initial_checkpoint_file is not None else (more[2:3] or [None])[0]
        steps = _steps("execute()")
        steps.load_state(self._initial_values(initial), mode, send_weights_grouper)
        steps.run(DataLoader(input_fn, *arguments), total_steps, every, mode)
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
            duplicate_params_map: Names of the same weight, which `weights` has under each name.
        """
        leaves = named_leaves(weights) if isinstance(weights, Mapping) else dict(weights)
        writer, steps = PyTorchH5Saver(), _steps("save_weights()")
        for name, value in leaves.items():
            writer.save_tensor(file_name, name, steps.checkpoint_value(name, value))

    def save_dataloader_checkpoint(self, step: int) -> None:
        """Do nothing: the number of steps in a checkpoint is the position in the input."""

    @property
    def weight_names(self) -> dict[str, str]:
        """The names of weights by the names that the program has given them, which are the same."""
        return {name: name for name in self._weights}

    def receive_weights(self, state_dict: Any, iteration: int) -> dict[str, Any]:
        """Return the state after a step, counted from 0, by names without their first part."""
        steps = _steps("receive_weights()")
        self._weights = {
            name.partition(".")[2]: steps.checkpoint_value(name, x)
            for name, x in named_leaves(state_dict).items()
            if isinstance(x, DeviceTensor)
        }
        return self._weights

    def done(self) -> None:
        """End the run."""
        end_steps(None)

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
    """Return the cluster that the parameters of a program describe."""
    given = {name: runconfig[name] for name in vars(ClusterConfig()) if name in runconfig}
    return ClusterConfig(**{**given, "max_wgt_servers": runconfig.get("num_wgt_servers")})


def _choose_cluster(cs_config: Any) -> None:
    """Apply the effective settings of a cluster's description, and log those without effect."""
    given = {name: getattr(cs_config, name, None) for name in _WITHOUT_EFFECT}
    log_unused("ApplianceMode", given, {"transfer_processes": 5})
    names = ("mgmt_address", "num_csx", "num_workers_per_csx", "max_wgt_servers")
    settings = {name: value for name in names if (value := getattr(cs_config, name, None))}
    if settings.get("mgmt_address") == ORIGINAL_ADDRESS:
        del settings["mgmt_address"]
    if env().weight_streaming_mode:
        settings["execution"] = "weight_streaming"
    Program.current().change_configuration(**settings)
    cs_config.num_csx = 1
