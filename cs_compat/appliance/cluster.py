"""The original's cluster as programs know it: its errors, servers and tensors, all without effect here."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from cs_toolkit.errors import ToolkitError


class ApplianceClientException(ToolkitError):  # noqa: N818 - the original name
    """Base class of all errors of the appliance."""


class ApplianceCompilationError(ApplianceClientException):
    """A step could not be compiled."""


class ApplianceDeadlockError(ApplianceClientException):
    """A run made no progress."""


class ApplianceNanError(ApplianceClientException):
    """A program found a loss that is not a number; programs raise it themselves."""


class ApplianceUnknownError(ApplianceClientException):
    """A run failed for an unknown reason."""


class ApplianceVersionError(ApplianceClientException):
    """Client and appliance have different versions."""


class ClusterJobCancelledByCsctl(ApplianceClientException):
    """A job was cancelled by its user."""


class ClusterJobInitError(ApplianceClientException):
    """A job could not be started."""


log = logging.getLogger("cerebras")


class TelemetryClient:
    """Accepts metrics for the original's cluster. No server collects them here, which is logged once.

    Args:
        mgmt_client: `backend.cluster.client`.
        max_buffer_size: Accepted without effect.
        max_buffer_seconds: Accepted without effect.
    """

    def __init__(self, mgmt_client: Any, max_buffer_size: int = 128, max_buffer_seconds: int = 150) -> None:
        self.mgmt_client = mgmt_client
        _log_not_collected()

    def __enter__(self) -> TelemetryClient:
        return self

    def __exit__(self, *error: object) -> None:
        return None

    @property
    def job_id(self) -> str | None:
        """The job of the original's cluster: None."""
        return None

    def push(self, metrics: Mapping[str, Any], labels: Mapping[str, str] | None = None) -> None:
        """Accept metrics without effect."""

    def flush_data(self) -> None:
        """Do nothing: no metrics are buffered."""


@cache
def _log_not_collected() -> None:
    log.info("metrics for the original's cluster are not collected here; they are in the logs of the run")


@dataclass
class VolumeMount:
    """A folder that servers of the original's cluster mount; here all tasks see the folders of the program.

    Attributes:
        name: Name of the volume.
        mount_path: Path of the folder.
        sub_path: Folder in the volume.
    """

    name: str
    mount_path: str
    sub_path: str = ""


@dataclass
class TensorSendPayload:
    """One tensor on its way to the system.

    Attributes:
        fw_name: Name of the tensor in the program.
        tensor: Its elements.
    """

    fw_name: str
    tensor: Any = None


@dataclass
class TensorGroup:
    """Tensors that are sent together.

    Attributes:
        tensors: The tensors.
        closure: Changes them before they are sent.
    """

    tensors: list[TensorSendPayload] = field(default_factory=list)
    closure: Callable[[list[TensorSendPayload]], Any] | None = None


TensorGrouper = Callable[[Iterable[TensorSendPayload]], Iterable[TensorGroup]]
"""Groups the tensors of a run."""


class ApplianceEnvironment(MutableMapping[str, str]):
    """Environment variables for the servers of the original's cluster.

    Workers here are processes with the program's own environment, so they get the variables that are set.
    Iteration lists the variables that were set through this object.
    """

    def __init__(self) -> None:
        self._set: dict[str, None] = {}

    def __getitem__(self, name: str) -> str:
        return os.environ[name]

    def __setitem__(self, name: str, value: str) -> None:
        os.environ[name] = value
        self._set[name] = None

    def __delitem__(self, name: str) -> None:
        del os.environ[name]
        self._set.pop(name, None)

    def __contains__(self, name: object) -> bool:
        return name in os.environ

    def __iter__(self) -> Iterator[str]:
        return (name for name in self._set if name in os.environ)

    def __len__(self) -> int:
        return len(list(iter(self)))


appliance_environ = ApplianceEnvironment()
