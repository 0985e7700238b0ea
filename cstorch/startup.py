"""Configures a run, and starts the process for it: its logs, workers and CS system."""

from __future__ import annotations

import atexit
import inspect
import logging
import signal
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal

from cs_runtime.options import DEFAULT_COMPILE_DIR, local_compile_dir
from cs_toolkit.errors import suggestion
from cs_toolkit.execution_options import (
    SHARED_OPTIONS,
    Recompute,
    ReplicaChoice,
    configure_default_of,
    document_options,
)
from cs_toolkit.step import ExecutionChoice
from cstorch.chosen_backend import (
    DEFAULT_ARTIFACT_DIR,
    Backend,
    choose,
    current_backend,
    execution_of,
    type_of,
)
from cstorch.compatibility import log_unused
from cstorch.config import BackendType, Configuration, micro_batch_size_of
from cstorch.distributed.cluster import CSConfig
from cstorch.errors import ConfigureError
from cstorch.input.workers import job_files, serve_and_leave
from cstorch.job import task
from cstorch.loop import base, resources
from cstorch.program import Program
from cstorch.tracing.precision import mix_precision
from input_rules.input_export import export_requested

log = logging.getLogger("cstorch")

_WITHOUT_EFFECT = (
    "mount_dirs",
    "python_paths",
    "transfer_processes",
    "job_labels",
)
_APPLIANCE: Sequence[str] = (
    "credentials_path",
    "debug_args",
    "execution_strategy",
    "job_time_sec",
    "disable_version_check",
)
NO_EFFECT = ("drop_data", "log_initialization")
"""Settings of releases whose meaning is the original's cluster; the numbers are the same without them."""
_BACKEND_OPTIONS = ("execution", "num_replicas", "recompute", "micro_batch_size")
_GPU_SETTINGS = ("enable_distributed", "main_process_id", "dist_backend", "init_method", "sync_batchnorm")
_CPU_SETTINGS = ("artifact_dir", "cluster_config", "max_checkpoints", "mixed_precision")


@document_options(*SHARED_OPTIONS)
def configure(  # noqa: D417 - the decorator documents the options
    model_dir: str | Path | None = "./",
    compile_dir: str | Path | None = DEFAULT_COMPILE_DIR,
    compile_only: bool | None = False,
    validate_only: bool | None = False,
    checkpoint_steps: int | None = 0,
    seed: int | None = None,
    mgmt_address: str | None = None,
    num_csx: int | None = configure_default_of("num_csx"),
    num_workers_per_csx: int | None = 1,
    max_wgt_servers: int | None = configure_default_of("max_wgt_servers"),
    mount_dirs: Sequence[str] | None = None,
    python_paths: Sequence[str] | None = None,
    transfer_processes: int | None = 5,
    job_labels: Sequence[str] | None = None,
    max_act_per_csx: float | str | None = configure_default_of("max_act_per_csx"),
    execution: ExecutionChoice | None = None,
    num_replicas: ReplicaChoice | None = None,
    recompute: Recompute | None = None,
    micro_batch_size: int | str | None = None,
    input_shards: int | Literal["auto"] | None = None,
    input_order: str | None = None,
    allow_input_change: bool | None = None,
    **appliance: Any,
) -> None:
    """Configure the run. Call it once, before the model is created.

    None selects the default of a setting: programs pass the values that their command line has not set.

    Args:
        model_dir: Directory for summaries.
        compile_dir: Directory for compile artifacts; `model_dir` if None, or if it cannot be created here.
        compile_only: Compile the first step, and run nothing.
        validate_only: Trace the first step, and check that it can be compiled.
        checkpoint_steps: Interval of steps at which the state can be read, besides the first and last step.
        seed: Seed for `torch.manual_seed` and for random operations on the system.
        mgmt_address: IP:PORT of the CS system; None for CS_IP of the environment, else the site's, else an
            embedded system.
        num_workers_per_csx: Number of workers that stream the input, unless the launcher has started workers.
            0 leaves the choice to the toolkit: 1.
        mount_dirs: Of the original's appliance, without effect, which is logged; so are the next three.
        python_paths: Without effect: tasks have the PYTHONPATH of the program.
        transfer_processes: Without effect: the state is transferred in one stream.
        job_labels: Without effect: labels KEY=VALUE of the job.
        {options}
        appliance: Of the original's appliance, without effect: `credentials_path`, `debug_args`,
            `execution_strategy`, `job_time_sec`, `disable_version_check`.

    Raises:
        ConfigureError: The process is configured already, or a setting is unknown or invalid.
    """
    _require_known(appliance)
    without_effect = (mount_dirs, python_paths, transfer_processes, job_labels)
    given = dict(zip(_WITHOUT_EFFECT, without_effect, strict=True)) | appliance
    log_unused("configure()", given, {"transfer_processes": 5})
    options = {
        "execution": execution,
        "num_csx": num_csx,
        "num_replicas": num_replicas,
        "max_act_per_csx": max_act_per_csx,
        "recompute": recompute,
        "micro_batch_size": micro_batch_size,
        "input_shards": input_shards,
        "input_order": input_order,
        "allow_input_change": allow_input_change,
        "max_wgt_servers": configure_default_of("max_wgt_servers")
        if max_wgt_servers is None
        else max_wgt_servers,
    }
    configured = Configuration(
        model_dir=Path("./" if model_dir is None else model_dir),
        compile_dir=local_compile_dir(compile_dir),
        compile_only=bool(compile_only),
        validate_only=bool(validate_only),
        checkpoint_steps=checkpoint_steps or 0,
        seed=seed,
        mgmt_address=mgmt_address,
        num_workers_per_csx=num_workers_per_csx or 1,
    )
    set_configuration(configured.change(options), "configure()")


@document_options(*_BACKEND_OPTIONS)
def backend(  # noqa: D417 - the decorator documents the options
    backend_type: str | BackendType | None = None,
    artifact_dir: str | Path | None = None,
    compile_dir: str | Path | None = None,
    compile_only: bool = False,
    validate_only: bool = False,
    cluster_config: Any = None,
    max_checkpoints: int | None = None,
    retrace_every_iteration: bool = False,
    mixed_precision: bool | None = None,
    micro_batch_size: Any = None,
    use_cs_grad_accum: bool | None = None,
    execution: ExecutionChoice | None = None,
    num_replicas: ReplicaChoice | None = None,
    recompute: Recompute | None = None,
    **settings: Any,
) -> Backend:
    """Choose the backend of the program, once, before the model is created.

    Args:
        backend_type: "CSX", the CS system, or "CPU", where the same program runs eagerly; also by the name
            `type`. "WSE_WS" and "WSE_PIPELINE", of release 1.8, select the CS system and an `execution`. None
            means the chosen backend, or the CPU if there is none.
        artifact_dir: Directory for the files of runs; `./cerebras_logs` if None.
        compile_dir: Directory for compile artifacts; `artifact_dir` if None, or if it cannot be created here.
        compile_only: Compile the first step, and run nothing.
        validate_only: Trace the first step, and check that it can be compiled.
        cluster_config: `distributed.ClusterConfig`: address, number of systems and number of workers.
        max_checkpoints: Number of checkpoints that `save` keeps; it deletes older ones of this process.
        retrace_every_iteration: Refused if true: a step is recorded once.
        mixed_precision: True computes steps in the 16-bit type of `amp.set_half_dtype`, False in float32;
            None leaves that to `set_half_dtype` and `amp.autocast`.
        use_cs_grad_accum: False ignores `micro_batch_size`, as in the original; results are the same.
        {options}
        settings: `drop_data` and `log_initialization`, which have no effect.

    Raises:
        ConfigureError: There is a backend already, or a setting is unknown or invalid.
        CompileCallError: The backend is unavailable.
    """
    backend_type = settings.pop("type", backend_type)
    if backend_type is None:
        return current_backend(raise_exception=False) or choose(
            BackendType.CPU, artifact_dir, max_checkpoints
        )
    kind = type_of(backend_type)
    present = current_backend(raise_exception=False)
    if present is not None:
        raise ConfigureError(
            f"Cannot instantiate multiple backends: this process has {present} already; make the backend "
            "once, before the model, and start another process for another one"
        )
    _require_known_backend_settings(settings)
    if mixed_precision is not None:
        mix_precision(mixed_precision)
    if max_checkpoints is not None and max_checkpoints < 1:
        raise ConfigureError(f"max_checkpoints is {max_checkpoints}, expected 1 or more, or None for all")
    if kind is BackendType.CPU:
        chosen = choose(kind, artifact_dir, max_checkpoints, cluster_config)
        chosen.mixed_precision = bool(mixed_precision)
        return chosen
    if retrace_every_iteration:
        raise ConfigureError(
            "retrace_every_iteration is True, expected False: a step is recorded once; choose with "
            "torch.where what depends on the step"
        )
    folder = Path(artifact_dir or DEFAULT_ARTIFACT_DIR)
    cluster = {} if cluster_config is None else CSConfig.of(cluster_config).settings()
    options = {
        "micro_batch_size": micro_batch_size_of(micro_batch_size),
        "execution": execution or execution_of(backend_type),
        "num_replicas": num_replicas,
        "recompute": recompute,
    }
    configured = Configuration(
        model_dir=folder,
        compile_dir=local_compile_dir(compile_dir) or folder,
        compile_only=compile_only,
        validate_only=validate_only,
        use_cs_grad_accum=use_cs_grad_accum is not False,
    ).change({**options, **cluster})
    # The address of a system may come with a DataExecutor, so none is started before that.
    set_configuration(configured, "backend(), after configure(),", start_system=bool(cluster))
    return choose(kind, folder, max_checkpoints, cluster_config)


def get_backend_args(backend_type: str | BackendType) -> dict[str, inspect.Parameter]:
    """Return the parameters of `backend` for a kind of backend, by name.

    Raises:
        ValueError: There is no such kind.
    """
    kind = backend_type if isinstance(backend_type, BackendType) else BackendType.from_str(backend_type)
    found = {
        name: parameter
        for name, parameter in inspect.signature(backend).parameters.items()
        if parameter.kind is not inspect.Parameter.VAR_KEYWORD
    }
    if kind is BackendType.CPU:
        return {name: found[name] for name in ("backend_type", *_CPU_SETTINGS)}
    return found


def set_configuration(configuration: Configuration, caller: str, start_system: bool = True) -> None:
    """Configure the program, once. A worker serves the chief's runs here, and exits.

    Args:
        configuration: The configuration.
        caller: The function that the program has called, for messages.
        start_system: Start a simulated system now if the program names none.

    Raises:
        ConfigureError: The process is configured already.
    """
    Program.current().configure(configuration, caller)
    start_process(start_system)


def start_process(start_system: bool = True) -> None:
    """Make this process the chief of its job, or a worker, for which this does not return.

    Args:
        start_system: Start a simulated system now if the program names none.
    """
    base.set_up_reports()
    if export_requested():
        return  # the first loop exports the input to cs_input_analyzer
    if task().role == "worker":
        serve_and_leave()
    if task().num_tasks > 1:
        atexit.register(job_files(task()).end)
    resources.start_workers()
    take_requests()
    if start_system:
        resources.start_system()  # it starts while the program creates its model


def start_session() -> None:
    """Set up this process as a task of a job whose tasks all run the whole program."""
    base.set_up_reports()
    take_requests()


def take_requests() -> None:
    """Make SIGUSR1 request a checkpoint from now on, unless the program handles that signal itself."""
    if signal.getsignal(signal.SIGUSR1) is signal.SIG_DFL:
        program = Program.current()
        program.cleanup.enter_context(program.checkpoint_requests)


def _parameters(function: Callable[..., Any]) -> list[str]:
    parameters = inspect.signature(function).parameters.values()
    return [each.name for each in parameters if each.kind is not inspect.Parameter.VAR_KEYWORD]


def _unknown_setting(function: str, name: str, known: Sequence[str]) -> ConfigureError:
    near = suggestion(name, known) or f"; expected one of {', '.join(known)}"
    return ConfigureError(f"{function}() got the unknown argument '{name}'{near}")


def _require_known(appliance: dict[str, Any]) -> None:
    unknown = sorted(set(appliance) - set(_APPLIANCE))
    if unknown:
        raise _unknown_setting("configure", unknown[0], [*_parameters(configure), *_APPLIANCE])


def _require_known_backend_settings(settings: dict[str, Any]) -> None:
    unknown = sorted(settings.keys() - {*NO_EFFECT, *_GPU_SETTINGS})
    if unknown:
        raise _unknown_setting("backend", unknown[0], [*_parameters(backend), *NO_EFFECT])
    for name in sorted(settings):
        log.info("backend setting %s has no effect on this system", name)
