#!/usr/bin/env python3
"""A program of the appliance generation: its branch, a training, evaluations of the checkpoints."""

import argparse
import importlib.util

import tensorflow as tf

tf.compat.v1.disable_eager_execution()


def found(name):
    try:
        return importlib.util.find_spec(name) is not None
    except ImportError:
        return False


parser = argparse.ArgumentParser()
parser.add_argument("device", choices=["CSX", "CPU"])
parser.add_argument("strategy", nargs="?", default="pipeline")
parser.add_argument("--mgmt_address", default=None)
parser.add_argument("--model_dir", default="model_dir")
args = parser.parse_args()

BRANCH = "container" if found("cerebras.framework") else "wheel" if found("cerebras_appliance") else "none"
print("branch", BRANCH)
if BRANCH != "wheel":
    raise SystemExit("this program has no branch for the container")

from cerebras_appliance import DEFAULT_COMPILE_DIR  # noqa: E402
from cerebras_appliance.cs_run_config import CSRunConfig  # noqa: E402
from cerebras_appliance.CSConfig import CSConfig  # noqa: E402
from cerebras_appliance.pb.workflow.appliance.common.common_config_pb2 import (  # noqa: E402
    DebugArgs,
    ExecutionStrategy,
)
from cerebras_tensorflow.cs_estimator_app import CerebrasAppEstimator  # noqa: E402
from cerebras_tensorflow.cs_estimator_spec import CSEstimatorSpec  # noqa: E402
from cerebras_tensorflow.graph_extraction import cs1_disable_summaries, cs1_enable_summaries  # noqa: E402
from cerebras_tensorflow.saver.checkpoint_reader import CheckpointReader  # noqa: E402
from cerebras_tensorflow.summary import boundary_cast, summary_layer  # noqa: E402

STRATEGIES = {
    "pipeline": ExecutionStrategy.ES_PIPELINE,
    "weight_streaming": ExecutionStrategy.ES_WEIGHT_STREAMING,
}


class Estimator(CerebrasAppEstimator):
    """As programs wrap it."""

    def __init__(self, model_fn, model_dir=None, compile_dir=None, config=None, params=None):
        super().__init__(
            model_fn=model_fn, model_dir=model_dir, config=config, params=params, compile_dir=compile_dir
        )


class RunConfig(CSRunConfig):
    def __init__(self, cs_config=None, **kwargs):
        kwargs["cs_config"] = cs_config
        super().__init__(**kwargs)


def model_fn(features, labels, mode, params):
    x = summary_layer(boundary_cast(features))
    logits = tf.compat.v1.layers.dense(x, params["classes"])
    loss = tf.compat.v1.losses.sparse_softmax_cross_entropy(labels, logits)
    train_op = None
    if mode == tf.estimator.ModeKeys.TRAIN:
        optimizer = tf.compat.v1.train.GradientDescentOptimizer(0.5)
        train_op = optimizer.minimize(loss, tf.compat.v1.train.get_global_step())
    return CSEstimatorSpec(mode=mode, loss=loss, train_op=train_op)


def input_fn(params):
    x = tf.reshape(tf.range(48.0), (16, 3)) / 48
    labels = tf.cast(tf.range(16) % params["classes"], tf.int32)
    return tf.data.Dataset.from_tensor_slices((x, labels)).repeat().batch(4, drop_remainder=True)


debug_args = DebugArgs()
debug_args.debug_mgr.clean_pod_policy = DebugArgs.DebugMGR.CleanPodPolicy.NONE
config = RunConfig(
    cs_config=CSConfig(
        num_csx=1,
        max_wgt_servers=None,
        mgmt_address=args.mgmt_address,
        debug_args=debug_args,
        num_workers_per_csx=0,
        execution_strategy=STRATEGIES[args.strategy],
        job_labels=["a=b"],
    ),
    save_checkpoints_steps=2,
    tf_random_seed=3,
)
use_cs = args.device == "CSX"
with cs1_enable_summaries() if use_cs else cs1_disable_summaries():
    estimator = Estimator(model_fn, args.model_dir, DEFAULT_COMPILE_DIR, config, {"classes": 3})
    estimator.train(input_fn, steps=None, max_steps=4, use_cs=use_cs)
    for checkpoint in CheckpointReader.all_checkpoints(args.model_dir):
        assert CheckpointReader.is_a_checkpoint(checkpoint)
        metrics = estimator.evaluate(input_fn, steps=2, checkpoint_path=checkpoint, use_cs=use_cs)
        names = CheckpointReader(checkpoint).tensor_names
        print(f"{config.execution} {metrics['global_step']} {metrics['loss']:.4f} {'dense/kernel' in names}")
