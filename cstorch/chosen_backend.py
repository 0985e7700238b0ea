"""The backend of a program: the CS system, or this CPU."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from cs_toolkit import object_store
from cs_toolkit.step import ExecutionChoice
from cstorch.appliance import Settings, debug
from cstorch.config import BackendType
from cstorch.distributed.cluster import ClusterConfig
from cstorch.errors import CompileCallError, ConfigureError
from cstorch.job import leave_to_chief
from cstorch.program import Program, configuration
from cstorch.tracing.device import DEVICE, is_tracing

# Names of the first releases.
_OLD_NAMES = {"WSE_WS": "CSX", "WSE_PIPELINE": "CSX", "WSE": "CSX"}
# The execution mode that a backend's name implies.
_EXECUTIONS: Mapping[str, ExecutionChoice] = {"WSE_WS": "weight_streaming", "WSE_PIPELINE": "pipelined"}

DEFAULT_ARTIFACT_DIR = "./cerebras_logs"


class Flag(int):
    """A truth value that programs read as an attribute; programs of the first releases call it."""

    def __call__(self) -> bool:
        """Return the truth value."""
        return bool(self)


class Device:
    """The device of a backend, which is also a context for creating a model.

    A model is always created on this CPU, with the numbers that PyTorch draws there; `compile` moves it.

    Attributes:
        torch_device: The device that tensors of a compiled model report.
    """

    def __init__(self, torch_device: torch.device) -> None:
        self.torch_device = torch_device

    @property
    def type(self) -> str:
        """PyTorch's name of the device type."""
        return str(self.torch_device.type)

    @property
    def config(self) -> Settings:
        """Settings of transfers to the device, which programs after release 2.2 set on `csx.debug`."""
        return debug

    def __enter__(self) -> Device:
        return self

    def __exit__(self, *error: object) -> None:
        return None

    def __str__(self) -> str:
        """Return the kind of backend, which programs of releases 2.x print in progress lines."""
        return (BackendType.CPU if self.torch_device.type == "cpu" else BackendType.CSX).value


class Cluster:
    """The cluster of a backend: one CS system, which each run reserves and releases itself.

    Attributes:
        config: `distributed.ClusterConfig` of the backend, which may be replaced between two loops.
        workflow_id: Workflow of the jobs; always None, because a reservation ends with its run.
        client: Connection to the management of the original's cluster; None.
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
    """The CS system or this CPU, on which a program computes.

    Attributes:
        backend_type: Kind of backend.
        max_checkpoints: Number of checkpoints of this process that `save` keeps; None for all.
        mixed_precision: On the CPU, models compute in bfloat16 if that is the 16-bit type.
        appliance: The original's appliance; None.
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
        """Delete the oldest checkpoints of this process if there are too many with a new one."""
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
        """Directory for the files of its runs."""
        return self._artifact_dir

    @artifact_dir.setter
    def artifact_dir(self, folder: str | Path) -> None:
        self._artifact_dir = Path(folder)

    @property
    def cluster(self) -> Cluster:
        """The cluster."""
        return self._cluster

    @property
    def device(self) -> Device:
        """The device of its tensors."""
        return self._device

    @property
    def cluster_config(self) -> Any:
        """The configuration of the cluster."""
        return self.cluster.config

    @cluster_config.setter
    def cluster_config(self, config: Any) -> None:
        self.cluster.config = config

    @property
    def _impl(self) -> Backend:
        """This backend."""
        # Programs read this attribute, because the original's backend wraps another object.
        return self

    @property
    def is_e2e_execution(self) -> bool:
        """True if steps run, and are not only compiled or validated."""
        config = configuration()
        return not (self.is_csx and (config.compile_only or config.validate_only))

    @property
    def is_tracing(self) -> bool:
        """True while a step is being recorded."""
        return is_tracing()

    def to_cpu(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return the values of a tensor on this CPU."""
        return tensor.cpu()

    @property
    def name(self) -> str:
        """Name of the kind of backend."""
        return self.backend_type.value

    @property
    def torch_device(self) -> torch.device:
        """The device that tensors of a compiled model report."""
        return self.device.torch_device

    @property
    def is_csx(self) -> Flag:
        """True for a CS system."""
        return Flag(self.backend_type is BackendType.CSX)

    is_wse = is_csx

    @property
    def is_cpu(self) -> Flag:
        """True for this CPU."""
        return Flag(self.backend_type is BackendType.CPU)

    @property
    def is_gpu(self) -> Flag:
        """True for a GPU."""
        return Flag(self.backend_type is BackendType.GPU)

    def __str__(self) -> str:
        return self.name


def type_of(given: str | BackendType) -> BackendType:
    """Return the kind of backend that a program names, in upper or lower case.

    Raises:
        CompileCallError: The kind is unknown or unavailable.
    """
    name = given.value if isinstance(given, BackendType) else str(given).upper()
    name = _OLD_NAMES.get(name, name)
    if name == "GPU":
        raise CompileCallError(
            "backend 'GPU' is unavailable, expected CSX or CPU: steps run on the CS system, or eagerly on "
            "this CPU; choose CPU to debug a program"
        )
    if name not in BackendType.__members__:
        raise CompileCallError(f"backend is {given!r}, expected 'CSX' or 'CPU'")
    return BackendType[name]


def execution_of(given: str | BackendType) -> ExecutionChoice | None:
    """Return the execution mode that a backend's name implies; None if it implies none."""
    return _EXECUTIONS.get(str(given).upper())


def current_backend(raise_exception: bool = True, raise_warning: bool = True) -> Backend | None:
    """Return the backend of the program.

    Args:
        raise_exception: Raise an error if there is none, instead of returning None.
        raise_warning: Without effect: None is returned without a warning.

    Raises:
        ConfigureError: There is none, and `raise_exception` is set.
    """
    chosen = Program.current().backend
    assert isinstance(chosen, Backend | None)
    if chosen is None and raise_exception:
        raise ConfigureError("there is no backend yet, expected cstorch.backend(...) before this call")
    return chosen


def on_csx() -> bool:
    """Return True if the program has chosen the CS system."""
    return Program.current().on_csx


def on_cpu() -> bool:
    """Return True if the program has chosen the CPU."""
    return Program.current().on_cpu


def choose(
    kind: BackendType,
    artifact_dir: str | Path | None = None,
    max_checkpoints: int | None = None,
    cluster_config: Any = None,
) -> Backend:
    """Create the backend of the program; on the CPU, workers of a job have nothing to do and end here."""
    if kind is BackendType.CPU:
        leave_to_chief()
    chosen = Backend(kind, Path(artifact_dir or DEFAULT_ARTIFACT_DIR), max_checkpoints, cluster_config)
    Program.current().backend = chosen
    return chosen
