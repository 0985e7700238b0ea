"""The task of the job that this process is, for programs that set TF_CONFIG themselves."""

from __future__ import annotations

import json
import os
from typing import Any

import tensorflow as tf

from csrun.tasks.place import TF_CONFIG_PORT_BASE, tf_config
from csrun.tasks.roles import TaskInfo


class CSSlurmClusterResolver(tf.distribute.cluster_resolver.ClusterResolver):  # type: ignore[misc]
    """Resolves the tasks of the job that the launcher has started.

    Args:
        port_base: Port of rank 0; rank r has port_base + r.
    """

    def __init__(self, port_base: int = TF_CONFIG_PORT_BASE) -> None:
        self._port_base = port_base
        task = TaskInfo.from_environment()
        self.task_type, self.task_id = task.role, task.index
        own = json.loads(os.environ.get("TF_CONFIG") or "{}").get("cluster")
        self._cluster = own or tf_config(task.rank, [task.host] * task.num_tasks)["cluster"]

    def cluster_spec(self) -> Any:
        """Return the addresses of all tasks by role, as a tf.train.ClusterSpec."""
        chiefs, workers = self._cluster["chief"], self._cluster["worker"]
        # In a job of one task, chief and worker have the same address.
        tasks = chiefs if workers == chiefs else [*chiefs, *workers]
        hosts = [address.rpartition(":")[0] for address in tasks]
        addresses = [f"{host}:{self._port_base + rank}" for rank, host in enumerate(hosts)]
        return tf.train.ClusterSpec({"chief": addresses[:1], "worker": addresses[1:] or addresses[:1]})

    def get_task_info(self) -> tuple[str, int]:
        """Return the role and the index of this task."""
        return self.task_type, self.task_id

    def master(
        self, task_type: str | None = None, task_id: int | None = None, rpc_layer: str | None = None
    ) -> str:
        """Return "": no TensorFlow session is opened on another task."""
        return ""

    def num_accelerators(
        self,
        task_type: str | None = None,
        task_id: int | None = None,
        config_proto: Any = None,
    ) -> dict[str, int]:
        """Return none: the accelerator is attached by network."""
        return {}
