"""The one backend of a process."""

from __future__ import annotations

import enum
import inspect
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from cs_runtime.options import default_execution, local_compile_dir
from cs_toolkit import object_store
from cs_toolkit.execution_options import Recompute, ReplicaChoice
from cs_toolkit.step import ExecutionChoice
from cstorch.backends import csx
from cstorch.config import Configuration, configuration, micro_batch_size_of, set_configuration
from cstorch.distributed.cluster import ClusterConfig, CSConfig
from cstorch.errors import CompileCallError, ConfigureError
from cstorch.job import leave_to_chief
from cstorch.precision import mix_precision
from cstorch.tracing.device import DEVICE, is_tracing

log = logging.getLogger("cstorch")


class BackendType(enum.Enum):
    """Kinds of backends; programs may also give their names."""

    CSX = "CSX"
    CPU = "CPU"
    GPU = "GPU"

    @staticmethod
    def from_str(backend_type: str) -> BackendType:
        """Return the kind of a name in capital or small letters.

        Raises:
            ValueError: There is no such kind.
        """
        name = backend_type.upper()
        if name not in BackendType.__members__:
            raise ValueError(f"backend_type is {backend_type!r}, expected CSX, CPU or GPU")
        return BackendType[name]

    @property
    def is_csx(self) -> bool:
        """True for a CS system."""
        return self is BackendType.CSX

    @property
    def is_cpu(self) -> bool:
        """True for this CPU."""
        return self is BackendType.CPU

    @property
    def is_gpu(self) -> bool:
        """True for a GPU."""
        return self is BackendType.GPU


_OLD_NAMES = {"WSE_WS": "CSX", "WSE_PIPELINE": "CSX", "WSE": "CSX"}
"""Of the first releases."""
_EXECUTIONS: Mapping[str, ExecutionChoice] = {"WSE_WS": "weight_streaming", "WSE_PIPELINE": "pipelined"}
"""How the CS system executes a step, where the name of the backend says it."""

NO_EFFECT = ("drop_data", "log_initialization")
"""Settings of releases whose meaning is the original's cluster; the numbers are the same without them."""


class Flag(int):
    """A truth value that programs read as an attribute, and those of the first releases call."""

    def __call__(self) -> bool:
        """Its value."""
        return bool(self)


class Device:
    """Where a backend's tensors are: a context for making a model, and the device of torch.

    A model is made on this CPU either way, with the numbers that torch draws there, and moves in `compile`.

    Attributes:
        torch_device: what tensors of a compiled model say they are on.
    """

    def __init__(self, torch_device: torch.device) -> None:
        self.torch_device = torch_device

    @property
    def type(self) -> str:
        """Type of the device, as torch names it."""
        return str(self.torch_device.type)

    @property
    def config(self) -> csx.Settings:
        """How tensors move to the device: the settings that programs after release 2.2 set on `csx.debug`."""
        return csx.debug

    def __enter__(self) -> Device:
        return self

    def __exit__(self, *error: object) -> None:
        return None

    def __str__(self) -> str:
        """Return the kind of backend, which programs of releases 2.x print in each line of progress."""
        return (BackendType.CPU if self.torch_device.type == "cpu" else BackendType.CSX).value


class Cluster:
    """The cluster of a backend: one CS system, which every run reserves and frees by itself.

    Attributes:
        config: `distributed.ClusterConfig` of the backend. Another one may take its place between two loops.
        workflow_id: the workflow that jobs belong to; always None, as reservations outlast no run.
        client: the connection to the management of the original's cluster; None.
    """

    client: None = None
    workflow_id: None = None

    def __init__(self, config: Any) -> None:
        self.config = config

    def start_workflow(self, lock_resources: bool = True) -> bool:
        """Start no workflow: each run reserves the system for itself."""
        return False

    def stop_workflow(self) -> None:
        """Stop nothing: no workflow was started."""

    def check_storage_connectivity(self) -> None:
        """Check nothing: checkpoints are written by this process."""


class Backend:
    """What a process computes on.

    Attributes:
        backend_type: its kind.
        max_checkpoints: how many checkpoints of this process `save` keeps; all where None.
        mixed_precision: on the CPU, whether models compute in bfloat16 where that is the 16-bit type.
        appliance: the original's; None.
    """

    appliance: None = None

    def __init__(
        self,
        backend_type: BackendType,
        artifact_dir: Path = Path("./"),
        max_checkpoints: int | None = None,
        cluster_config: Any = None,
    ) -> None:
        self.backend_type = backend_type
        self._cluster = Cluster(ClusterConfig() if cluster_config is None else cluster_config)
        self._device = Device(DEVICE if backend_type is BackendType.CSX else torch.device("cpu"))
        self._artifact_dir = artifact_dir
        self.max_checkpoints = max_checkpoints
        self.mixed_precision = False
        self._saved: list[object_store.PathLike] = []

    def keep_newest(self, saved: object_store.PathLike) -> None:
        """Deletes the oldest checkpoints of this process where there are too many with this one."""
        if self.max_checkpoints is None:
            return
        path = saved if object_store.is_url(saved) else Path(saved).absolute()
        self._saved = [other for other in self._saved if other != path] + [path]
        while len(self._saved) > self.max_checkpoints:
            oldest = self._saved.pop(0)
            if object_store.is_url(oldest):
                object_store.delete(oldest)
            else:
                Path(oldest).unlink(missing_ok=True)

    @property
    def artifact_dir(self) -> Path:
        """Folder of the files of its runs."""
        return self._artifact_dir

    @artifact_dir.setter
    def artifact_dir(self, folder: str | Path) -> None:
        self._artifact_dir = Path(folder)

    @property
    def cluster(self) -> Cluster:
        """Its cluster, see `Cluster`."""
        return self._cluster

    @property
    def device(self) -> Device:
        """Where its tensors are, see `Device`."""
        return self._device

    @property
    def cluster_config(self) -> Any:
        """The configuration of its cluster."""
        return self.cluster.config

    @cluster_config.setter
    def cluster_config(self, config: Any) -> None:
        self.cluster.config = config

    @property
    def _impl(self) -> Backend:
        """This backend: the original's has another object behind it, which programs look at."""
        return self

    @property
    def is_e2e_execution(self) -> bool:
        """Whether its steps run, and are not only compiled or checked."""
        made = configuration()
        return not (self.is_csx and (made.compile_only or made.validate_only))

    @property
    def is_tracing(self) -> bool:
        """Whether a step is being recorded."""
        return is_tracing()

    def to_cpu(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return the values of a tensor on this CPU."""
        return tensor.cpu()

    @property
    def name(self) -> str:
        """Name of its kind."""
        return self.backend_type.value

    @property
    def torch_device(self) -> torch.device:
        """What tensors of a compiled model say they are on."""
        return self.device.torch_device

    @property
    def is_csx(self) -> Flag:
        """Whether it is a CS system."""
        return Flag(self.backend_type is BackendType.CSX)

    is_wse = is_csx

    @property
    def is_cpu(self) -> Flag:
        """Whether it is this CPU."""
        return Flag(self.backend_type is BackendType.CPU)

    @property
    def is_gpu(self) -> Flag:
        """Whether it is a GPU."""
        return Flag(self.backend_type is BackendType.GPU)

    def __str__(self) -> str:
        return self.name


_made: list[Backend] = []


def backend(
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
    """Chooses what this process computes on, once, before the model is made.

    Args:
        backend_type: "CSX", the CS system, or "CPU", where the same program runs eagerly; also by the name
            `type`. "WSE_WS" and "WSE_PIPELINE", of release 1.8, are the CS system with an `execution`. None
            means what has been chosen, or else the CPU.
        artifact_dir: Where files of its runs go; `./cerebras_logs` when None.
        compile_dir: Where compile artifacts go; `artifact_dir` when None, or where it cannot be made here.
        compile_only: Compile the first step, and run nothing.
        validate_only: Trace the first step and check that it can be compiled.
        cluster_config: `distributed.ClusterConfig`: address and number of systems and of workers.
        max_checkpoints: Checkpoints that `save` keeps; it deletes older ones of this process.
        retrace_every_iteration: Refused where it is true: a step is recorded once.
        mixed_precision: Steps are computed in the 16-bit type of `amp.set_half_dtype`, or in float32; None
            leaves that to `set_half_dtype` and `amp.autocast`.
        micro_batch_size: Samples that go through the layers together where weights stream, see `configure`.
        use_cs_grad_accum: False leaves a `micro_batch_size` out of account, as in the original; the numbers
            are the same either way.
        execution: How the CS system executes a step; this and the next two are those of `configure`.
        num_replicas: Copies of the model on one wafer that share a batch.
        recompute: Which layers compute their forward part again, where weights stream.
        settings: `drop_data` and `log_initialization`, which have no effect.

    Raises:
        ConfigureError: there is a backend already, or a setting is unknown or cannot be.
        CompileCallError: the type is not there.
    """
    backend_type = settings.pop("type", backend_type)
    if backend_type is None:
        return _made[0] if _made else choose(BackendType.CPU, artifact_dir, max_checkpoints)
    kind = type_of(backend_type)
    if _made:
        raise ConfigureError(
            f"Cannot instantiate multiple backends: this process has {_made[0]} already; make the backend "
            "once, before the model, and start another process for another one"
        )
    _require_known(settings)
    if mixed_precision is not None:
        mix_precision(mixed_precision)
    if max_checkpoints is not None and max_checkpoints < 1:
        raise ConfigureError(f"max_checkpoints is {max_checkpoints}, expected 1 or more, or None for all")
    if kind is BackendType.CPU:
        made = choose(kind, artifact_dir, max_checkpoints, cluster_config)
        made.mixed_precision = bool(mixed_precision)
        return made
    if retrace_every_iteration:
        raise ConfigureError(
            "retrace_every_iteration is True, expected False: a step is recorded once; choose with "
            "torch.where what depends on the step"
        )
    folder = Path(artifact_dir or DEFAULT_ARTIFACT_DIR)
    cluster = {} if cluster_config is None else CSConfig.of(cluster_config).settings()
    configured = Configuration(
        model_dir=folder,
        compile_dir=local_compile_dir(compile_dir) or folder,
        compile_only=compile_only,
        validate_only=validate_only,
        micro_batch_size=micro_batch_size_of(micro_batch_size),
        use_cs_grad_accum=use_cs_grad_accum is not False,
        execution=execution or execution_of(backend_type) or default_execution(),
        num_replicas=1 if num_replicas is None else num_replicas,
        recompute=recompute,
        **cluster,
    )
    # The address of a system may come with a DataExecutor, so none is started before that.
    set_configuration(configured, "backend(), beside configure(),", start_system=bool(cluster))
    return choose(kind, folder, max_checkpoints, cluster_config)


def get_backend_args(backend_type: str | BackendType) -> dict[str, inspect.Parameter]:
    """Return the parameters of `backend` that a kind of backends has, by name.

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


_CPU_SETTINGS = ("artifact_dir", "cluster_config", "max_checkpoints", "mixed_precision")

DEFAULT_ARTIFACT_DIR = "./cerebras_logs"


def type_of(given: str | BackendType) -> BackendType:
    """The kind that a program means, in capital or small letters.

    Raises:
        CompileCallError: there is no such kind, or none of it here.
    """
    name = given.value if isinstance(given, BackendType) else str(given).upper()
    name = _OLD_NAMES.get(name, name)
    if name == "GPU":
        raise CompileCallError(
            "backend 'GPU' is not there, expected CSX or CPU: steps run on the CS system, or eagerly on this "
            "CPU; choose CPU to debug a program"
        )
    if name not in BackendType.__members__:
        raise CompileCallError(f"backend is {given!r}, expected 'CSX' or 'CPU'")
    return BackendType[name]


def execution_of(given: str | BackendType) -> ExecutionChoice | None:
    """Return the execution that the name of a backend says; None where it says none."""
    return _EXECUTIONS.get(str(given).upper())


def current_backend(raise_exception: bool = True, raise_warning: bool = True) -> Backend | None:
    """Return the backend of this process.

    Args:
        raise_exception: Raise an error where there is none, instead of returning None.
        raise_warning: No effect: None is returned without a warning.

    Raises:
        ConfigureError: there is none, and an exception is wanted.
    """
    if not _made and raise_exception:
        raise ConfigureError("there is no backend yet, expected cstorch.backend(...) before this call")
    return _made[0] if _made else None


def on_csx() -> bool:
    """Whether this process has chosen the CS system."""
    return bool(_made) and bool(_made[0].is_csx)


def on_cpu() -> bool:
    """Whether this process has chosen the CPU."""
    return bool(_made) and bool(_made[0].is_cpu)


def choose(
    kind: BackendType,
    artifact_dir: str | Path | None = None,
    max_checkpoints: int | None = None,
    cluster_config: Any = None,
) -> Backend:
    """Makes the backend of this process; a worker of a job has nothing to do on a CPU, and ends here."""
    if kind is BackendType.CPU:
        leave_to_chief()
    made = Backend(kind, Path(artifact_dir or DEFAULT_ARTIFACT_DIR), max_checkpoints, cluster_config)
    _made.append(made)
    return made


_GPU_SETTINGS = ("enable_distributed", "main_process_id", "dist_backend", "init_method", "sync_batchnorm")


def _require_known(settings: dict[str, Any]) -> None:
    unknown = sorted(settings.keys() - {*NO_EFFECT, *_GPU_SETTINGS})
    if unknown:
        raise ConfigureError(
            f"backend() got {', '.join(unknown)}, expected artifact_dir, compile_dir, compile_only, "
            "validate_only, cluster_config, max_checkpoints, micro_batch_size, use_cs_grad_accum, "
            f"execution, num_replicas, recompute, or a setting without effect: {', '.join(NO_EFFECT)}"
        )
    for name in sorted(settings):
        log.info("backend setting %s has no effect on this system", name)
