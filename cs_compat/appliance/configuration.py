"""The configuration of the original's appliance, and that of a run of its TensorFlow programs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from cs_compat.appliance.messages import ExecutionStrategy
from cs_runtime.options import ORIGINAL_ADDRESS
from estimator import config

_EXECUTIONS: Mapping[int | None, str] = {
    ExecutionStrategy.ES_PIPELINE: "pipelined",
    ExecutionStrategy.ES_WEIGHT_STREAMING: "weight_streaming",
}


@dataclass
class CSConfig:
    """The cluster of a run.

    Attributes:
        num_csx: Number of CS systems.
        max_wgt_servers: Maximum number of MemoryX processes.
        max_act_per_csx: Activation servers of each CS system; without effect.
        num_workers_per_csx: Workers that stream the input to each CS system.
        mgmt_address: IP:PORT of the CS system; if None, CS_IP of the environment, else that of the site.
        execution_strategy: A value of `common_config_pb2.ExecutionStrategy`; if None, the toolkit chooses.
        precision_opt_level: Level of the original's optimization of precision; without effect.

    The other fields describe servers of the original's cluster and have no effect.
    """

    num_csx: int | None = 1
    max_wgt_servers: int | None = None
    max_act_per_csx: int | None = None
    mgmt_address: str | None = None
    mgmt_namespace: str | None = None
    credentials_path: str | None = None
    debug_args: Any = None
    mount_dirs: list[str] | None = None
    python_paths: list[str] | None = None
    transfer_processes: int | None = None
    num_workers_per_csx: int | None = 1
    execution_strategy: int | None = None
    job_labels: list[str] | None = None
    job_time_sec: int | None = None
    disable_version_check: bool = False
    precision_opt_level: int | None = None

    def settings(self) -> dict[str, Any]:
        """Return the settings that have an effect here, as fields of `estimator.CSRunConfig`."""
        return {
            "cs_ip": None if self.mgmt_address == ORIGINAL_ADDRESS else self.mgmt_address or None,
            "num_csx": self.num_csx or None,
            "max_wgt_servers": self.max_wgt_servers or None,
            "execution": _EXECUTIONS.get(self.execution_strategy),
        }


class CSRunConfig(config.CSRunConfig):
    """An `estimator.CSRunConfig` with the CS system of a `CSConfig`.

    Args:
        cs_config: A `cerebras_appliance.CSConfig.CSConfig`.
        **fields: Fields of `estimator.CSRunConfig`, which override those of `cs_config`.
    """

    def __init__(self, cs_config: Any = None, **fields: Any) -> None:
        if isinstance(cs_config, CSConfig):
            fields = {**cs_config.settings(), **fields}
        super().__init__(cs_config=cs_config, **fields)
