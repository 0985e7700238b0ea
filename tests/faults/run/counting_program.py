"""A user's program that writes the records of every step: `counting_program.py CS_IP MODEL_DIR MAX_STEPS`.

Every record has a number. SHARDING in the environment says how the input function finds its share: from
`context`, its `input_context`; from `call`, TF_CONFIG when it is called; from `import`, TF_CONFIG when the
program starts. SHUFFLE=1 shuffles, LENGTH=N ends after N records, SLOW=1 lets a test stop the run,
LATE=worker1 is SLOW in one worker.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

from estimator import CerebrasEstimator, CSRunConfig, EstimatorSpec, import_tensorflow, report_errors

import_tensorflow()
import tensorflow as tf  # noqa: E402

v1 = tf.compat.v1
BATCH = 4
SHARDING = os.environ.get("SHARDING", "context")
ROLE = os.environ.get("CSRUN_ROLE", "") + os.environ.get("CSRUN_TASK_INDEX", "")
LENGTH = int(os.environ.get("LENGTH", "100000"))


def share() -> tuple[int, int]:
    task = json.loads(os.environ["TF_CONFIG"])
    return max(1, len(task["cluster"].get("worker", []))), task["task"]["index"]


SHARE_AT_IMPORT = share() if SHARDING == "import" else (1, 0)


def input_fn(input_context: tf.distribute.InputContext | None = None) -> tf.data.Dataset:
    records = tf.data.Dataset.range(LENGTH, output_type=tf.int32)
    if SHARDING == "context" and input_context is not None:
        records = records.shard(input_context.num_input_pipelines, input_context.input_pipeline_id)
    elif SHARDING == "call":
        records = records.shard(*share())
    elif SHARDING == "import":
        records = records.shard(*SHARE_AT_IMPORT)
    if os.environ.get("SHUFFLE"):
        records = records.shuffle(64, seed=5)
    if os.environ.get("SLOW") or os.environ.get("LATE") == ROLE:
        records = records.map(lambda x: tf.py_function(sleep, [x], tf.int32)).map(lambda x: tf.reshape(x, []))
    return records.batch(BATCH, drop_remainder=True)


def sleep(record: Any) -> Any:
    time.sleep(0.01)
    return record


def model_fn(features: Any, mode: str) -> EstimatorSpec:
    records = tf.identity(features, "records")
    weight = v1.get_variable("weight", [], initializer=v1.zeros_initializer())
    loss = tf.reduce_mean((weight - 1.0) * tf.cast(records, tf.float32))
    train_op = v1.train.GradientDescentOptimizer(1e-6).minimize(loss, v1.train.get_global_step())
    return EstimatorSpec(mode, loss=loss, train_op=train_op)


class Count(v1.train.SessionRunHook):
    def __init__(self, path: Path) -> None:
        self.path = path

    def before_run(self, context: Any) -> Any:
        return v1.train.SessionRunArgs({"records": "records:0", "step": v1.train.get_global_step()})

    def after_run(self, context: Any, values: Any) -> None:
        line = {"step": int(values.results["step"]), "records": values.results["records"].tolist()}
        with self.path.open("a") as file:
            file.write(json.dumps(line) + "\n")


@report_errors()
def main(cs_ip: str, model_dir: str, max_steps: str) -> None:
    config = CSRunConfig(
        cs_ip=cs_ip,
        tf_random_seed=1,
        save_checkpoints_steps=int(os.environ.get("SAVE_EVERY", "6")),
        log_step_count_steps=6,
        keep_checkpoint_max=0,
        input_shards=int(os.environ["INPUT_SHARDS"]) if "INPUT_SHARDS" in os.environ else None,
    )
    hooks = [Count(Path(model_dir).parent / "records.jsonl")]
    CerebrasEstimator(model_fn, model_dir, config=config).train(
        input_fn, hooks=hooks, max_steps=int(max_steps)
    )


if __name__ == "__main__":
    main(*sys.argv[1:])
