"""The role of this process, and the TF_CONFIG that input functions shard by, whatever their framework."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from csrun.tasks.roles import TaskInfo, tf_config

VARIABLE = "TF_CONFIG"

# TF_CONFIG belongs to the process: an input function that runs in the worker's thread must not see it
# taken away by the chief's thread.
_lock = threading.RLock()


def current() -> TaskInfo:
    """The role of this process, from its environment."""
    return TaskInfo.from_environment()


def is_chief() -> bool:
    """Whether this process drives the run and writes its files."""
    return current().role == "chief"


@contextmanager
def exported(config: dict[str, Any]) -> Iterator[None]:
    """Sets TF_CONFIG for the body; an empty `config` removes it."""
    with _lock:
        before = os.environ.get(VARIABLE)
        _set(json.dumps(config) if config else None)
        try:
            yield
        finally:
            _set(before)


def shared_config() -> dict[str, Any]:
    """The whole job as a TF_CONFIG: the one that the launcher has set, else one made from the role."""
    with _lock:
        given = os.environ.get(VARIABLE, "").strip()
    task = current()
    return task.tf_config() if given in ("", "{}") else json.loads(given)


def alone_config() -> dict[str, Any]:
    """TF_CONFIG of a run that one process does alone: its input is the only shard."""
    return tf_config(0, [current().host])


def _set(value: str | None) -> None:
    if value is None:
        os.environ.pop(VARIABLE, None)
    else:
        os.environ[VARIABLE] = value
