"""Functions and classes of the original stack for models and run scripts: summaries, checkpoints, the job."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from csrun.tasks.place import TF_CONFIG_PORT_BASE, tf_config
from csrun.tasks.roles import TaskInfo
from estimator.checkpoints import checkpoint_exists, find_checkpoint, literal_path
from estimator.errors import CheckpointReadError

_SUMMARIES = tf.compat.v1.GraphKeys.SUMMARIES


@contextmanager
def cs1_enable_summaries() -> Iterator[None]:
    """Record the summaries of the body, as is the default."""
    yield


@contextmanager
def cs1_disable_summaries() -> Iterator[None]:
    """Do not record the summaries of the body."""
    summaries = tf.compat.v1.get_default_graph().get_collection_ref(_SUMMARIES)
    before = list(summaries)
    try:
        yield
    finally:
        summaries[:] = before


class GetWeights:
    """The variables of a checkpoint, including the global step: iterates over (name, value).

    Args:
        checkpoint: Prefix of a checkpoint, or a directory for the newest one in it.

    Raises:
        ValueError: There is no such checkpoint.
    """

    def __init__(self, checkpoint: str | Path) -> None:
        try:
            self._reader = tf.train.load_checkpoint(literal_path(find_checkpoint(str(checkpoint))))
        except (ValueError, tf.errors.OpError, CheckpointReadError) as error:
            raise ValueError(f"'{checkpoint}' is not a checkpoint: {error}") from error

    def __iter__(self) -> Iterator[tuple[str, np.ndarray]]:
        for name in sorted(self._reader.get_variable_to_shape_map()):
            yield name, self._reader.get_tensor(name)


def boundary_cast(x: Any, name: str | None = None, back_cast: bool = True) -> Any:
    """Return the tensor unchanged: the number format is chosen for the whole model, by `precision`."""
    return tf.identity(x, name)


def summary_layer(x: Any) -> Any:
    """Return the tensor, and record a histogram of it as a summary."""
    return summarize_tensor(x)


def summarize_tensor(x: Any, is_gradient_tensor: bool = False, op_name_if_grad: str | None = None) -> Any:
    """Return the tensor, and record a histogram of it as a summary.

    Args:
        x: A tensor of a graph; all other tensors are only returned.
        is_gradient_tensor: True for a gradient, whose summary is named `op_name_if_grad`.
        op_name_if_grad: Name of the summary of a gradient.
    """
    y = tf.identity(x)
    if isinstance(y, tf.Tensor) and not tf.executing_eagerly():
        name = op_name_if_grad if is_gradient_tensor and op_name_if_grad else y.op.name
        tf.compat.v1.summary.histogram(name, y)
    return y


class CheckpointReader:
    """Reads a checkpoint.

    Args:
        checkpoint: Prefix of its files.

    Raises:
        ValueError: There is no such checkpoint.
    """

    def __init__(self, checkpoint: str | os.PathLike[str]) -> None:
        self.checkpoint = os.fspath(checkpoint)
        if not self.is_a_checkpoint(self.checkpoint):
            raise ValueError(
                f"'{self.checkpoint}' is not a checkpoint, expected the prefix of one, model.ckpt-N"
            )
        self._reader = tf.train.load_checkpoint(literal_path(self.checkpoint))

    @staticmethod
    def all_checkpoints(model_dir: str | os.PathLike[str]) -> list[str]:
        """Return the prefixes of the checkpoints that the index of a folder lists, oldest first."""
        state = tf.train.get_checkpoint_state(os.fspath(model_dir))
        return [] if state is None else list(state.all_model_checkpoint_paths)

    @staticmethod
    def is_a_checkpoint(checkpoint: str | os.PathLike[str]) -> bool:
        """Return True if the files of a checkpoint exist."""
        return checkpoint_exists(os.fspath(checkpoint))

    @property
    def tensor_names(self) -> list[str]:
        """Names of its variables."""
        return sorted(self._reader.get_variable_to_shape_map())

    def __getitem__(self, name: str) -> np.ndarray[Any, Any]:
        found: np.ndarray[Any, Any] = self._reader.get_tensor(name)
        return found


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
