"""The data of the example programs: errors in it, and the shard of a task."""

from __future__ import annotations

import json
import os


class DataError(Exception):
    """The data cannot be used."""

    exit_code = 1


def task_shard() -> tuple[int, int]:
    """Return `(number of shards, index of this task's shard)` from TF_CONFIG; one shard without it."""
    config = json.loads(os.environ.get("TF_CONFIG") or "{}")
    if not config:
        return 1, 0
    return len(config["cluster"]["worker"]), config["task"]["index"]
