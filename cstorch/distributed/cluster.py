"""The description of a cluster that programs give: address, number of systems, number of workers."""

# Without `from __future__ import annotations`: parsers of command lines read the types of the fields.

import dataclasses
from dataclasses import dataclass
from typing import Any, ClassVar

from cs_toolkit.execution_options import default_of, document_options
from cstorch.compatibility import log_unused

_OPTIONS = ("num_csx", "max_act_per_csx", "max_wgt_servers")
_USED = ("mgmt_address", "num_workers_per_csx", *_OPTIONS)


@document_options(*_OPTIONS)
@dataclass
class ClusterConfig:
    """The cluster of a run.

    Attributes:
        mgmt_address: IP:PORT of the CS system; if None, CS_IP of the environment, else the site's, else an
            embedded system.
        num_workers_per_csx: Number of workers that stream the input to each CS system.
        {options}

    0 of an option means no limit. The others size and label servers of the original's cluster. They have no
    effect, which is logged.
    """

    DEFAULT: ClassVar[str] = "default"

    mgmt_address: str | None = None
    mgmt_namespace: str | None = None
    credentials_path: str | None = None
    num_csx: int = 1
    max_wgt_servers: int = 0
    max_act_per_csx: int = 0
    num_workers_per_csx: int = 1
    cbcore_image: str | None = None
    job_labels: list[str] | None = None
    job_priority: str | None = None
    job_time_sec: int | None = None
    mount_dirs: list[str] | None = None
    python_paths: list[str] | None = None
    automount: bool = True
    disable_version_check: bool = False
    workflow_id: str | None = None
    notifications: list[str] | None = None

    @property
    def job_timer(self) -> None:
        """The time limit of jobs of the original's cluster: None, because the launcher limits jobs."""
        return None

    @classmethod
    def get_default(cls, key: str) -> Any:
        """Return the default of a setting.

        Raises:
            KeyError: There is no such setting.
        """
        return {field.name: field.default for field in dataclasses.fields(cls)}[key]

    def __hash__(self) -> int:
        """Return equal numbers for equal settings: programs cache their backends by them."""
        return hash(repr(vars(self)))

    def settings(self) -> dict[str, Any]:
        """Return the effective settings as arguments of `configure`, and log those without effect."""
        given = {name: value for name, value in vars(self).items() if name not in _USED}
        log_unused("ClusterConfig", given, {"automount": True})
        options = {name: getattr(self, name) for name in _OPTIONS}
        unlimited = {name for name, value in options.items() if value == 0 and default_of(name) is None}
        return {
            "mgmt_address": self.mgmt_address,
            "num_workers_per_csx": self.num_workers_per_csx or 1,
            **{name: None if name in unlimited else value for name, value in options.items()},
        }


class CSConfig(ClusterConfig):
    """The same by the name of release 1.9, which takes any further setting and keeps it without effect."""

    def __init__(self, **settings: Any) -> None:
        names = {field.name for field in dataclasses.fields(ClusterConfig)}
        super().__init__(**{name: value for name, value in settings.items() if name in names})
        for name in settings.keys() - names:
            setattr(self, name, settings[name])

    @classmethod
    def of(cls, given: Any) -> "CSConfig":
        """Create a configuration from one, from a dict, or from any object with such attributes."""
        return cls(**(given if isinstance(given, dict) else vars(given)))
