"""The role of this process, and the TF_CONFIG by which input functions of any framework shard."""

from __future__ import annotations

import json
import logging
import os
import threading
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from typing import Any

from csrun.tasks.place import tf_config
from csrun.tasks.roles import TaskInfo

log = logging.getLogger("cs_runtime")

VARIABLE = "TF_CONFIG"

# The environment is shared by the threads of the process: the chief's thread must not remove TF_CONFIG while
# an input function runs in the worker's thread.
_lock = threading.RLock()


def current() -> TaskInfo:
    """Return the role of this process, from its environment."""
    return TaskInfo.from_environment()


def is_chief() -> bool:
    """Return True if this process drives the run and writes its files."""
    return current().role == "chief"


def has_input(task: TaskInfo) -> bool:
    """Return True if this worker streams a part of the input of a run; log otherwise that it has none.

    Args:
        task: This task, with the number of workers of the run: 1 for evaluation and prediction.
    """
    # One worker reads the whole input of inference, regardless of the size of the job: outputs are matched to
    # records by position, and with several shards the last records of each might not fill a batch.
    if task.index < task.num_workers:
        return True
    log_idle("worker 0 reads the whole input", task)
    return False


def log_idle(reason: str, task: TaskInfo | None = None) -> None:
    """Log why this worker has nothing to do.

    Args:
        reason: A sentence without its period.
        task: This task; None for that of the environment.
    """
    log.info("nothing to do for worker %d: %s", (task or current()).index, reason)


@contextmanager
def export_config(config: dict[str, Any]) -> Iterator[None]:
    """Set TF_CONFIG during the body; an empty `config` unsets it."""
    with _lock:
        before = os.environ.get(VARIABLE)
        _set(json.dumps(config) if config else None)
        try:
            yield
        finally:
            _set(before)


@contextmanager
def watch_environment(names: Collection[str]) -> Iterator[set[str]]:
    """Yield a set that gets the names of those of the variables that are read in the body."""
    found: set[str] = set()

    class WatchedEnvironment(os._Environ[str]):
        def __getitem__(self, key: str) -> str:
            if key in names:
                found.add(key)
            return super().__getitem__(key)

        def copy(self) -> dict[str, str]:  # for another process: this asks for no variable
            read = super().__getitem__
            return {name: read(name) for name in self}

    with _lock:
        kind = type(os.environ)
        # The class is changed, not the object, to which programs may have other references.
        os.environ.__class__ = WatchedEnvironment
        try:
            yield found
        finally:
            os.environ.__class__ = kind


def job_config() -> dict[str, Any]:
    """Return the TF_CONFIG of the whole job: the launcher's, or one made from the role."""
    with _lock:
        given = os.environ.get(VARIABLE, "").strip()
    task = current()
    return task.tf_config() if given in ("", "{}") else json.loads(given)


def single_task_config() -> dict[str, Any]:
    """Return the TF_CONFIG of a run in one process, whose input is the only shard."""
    return tf_config(0, [current().host])


def _set(value: str | None) -> None:
    if value is None:
        os.environ.pop(VARIABLE, None)
    else:
        os.environ[VARIABLE] = value
