"""The shard of this task, for the input functions of the example programs."""

from __future__ import annotations

import json
import os


def task_shard() -> tuple[int, int]:
    """Return `(number of shards, index of this task's shard)` from TF_CONFIG; one shard without it."""
    config = json.loads(os.environ.get("TF_CONFIG") or "{}")
    if not config:
        return 1, 0
    return len(config["cluster"]["worker"]), config["task"]["index"]
