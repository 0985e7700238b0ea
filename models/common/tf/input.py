"""What the input functions of the example programs share."""

from __future__ import annotations

import json
import os


def task_shard() -> tuple[int, int]:
    """`(number of shards, index of this task's)` as TF_CONFIG says; one shard without it."""
    config = json.loads(os.environ.get("TF_CONFIG") or "{}")
    if not config:
        return 1, 0
    return len(config["cluster"]["worker"]), config["task"]["index"]
