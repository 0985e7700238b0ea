"""Validates, compiles, trains, evaluates, predicts; as one runs it on a CS system of those years."""

import argparse
import os
from pathlib import Path

import tensorflow as tf

tf.compat.v1.disable_eager_execution()

import utils  # noqa: E402
from model import input_fn, model_fn  # noqa: E402
from wrappers import Estimator, RunConfig, announce  # noqa: E402

PARAMS = {
    "csconfig": {"use_cbfloat16": True},
    "data": {
        "records": 512,
        "features": 12,
        "classes": 4,
        "batch_size": 32,
        "seed": 5,
        "use_multiple_workers": True,
    },
    "model": {"hidden": 24, "classes": 4, "mixed_precision": True},
    "optimizer": {"learning_rate": 0.02, "max_gradient_norm": 1.0},
}
MODES = ["train", "eval", "predict", "compile_only", "validate_only"]


def parse_arguments():
    parser = argparse.ArgumentParser()
    parser.add_argument("-m", "--mode", required=True, choices=MODES)
    parser.add_argument("-o", "--model_dir", default="model_dir")
    parser.add_argument("--cs_ip", default=None)
    parser.add_argument("--max_steps", type=int, default=None)
    parser.add_argument("--eval_steps", type=int, default=None)
    parser.add_argument("--skip", action="store_true", help="leave out what earlier runs have used")
    parser.add_argument("--input_position", default=None)
    parser.add_argument("--validate_only", action="store_true")
    parser.add_argument("--compile_only", action="store_true")
    return parser.parse_args()


def main():
    arguments = parse_arguments()
    os.environ["CEREBRAS_CUSTOM_MONITORED_SESSION"] = "True"
    announce()
    params = {**PARAMS, "runconfig": vars(arguments)}
    if arguments.mode == "train" and arguments.skip and Path(arguments.model_dir).is_dir():
        steps = utils.checkpoint_steps(tf.train.latest_checkpoint(arguments.model_dir))
        params["data"]["skip_steps"] = steps // utils.num_workers()
        print(f"the program skips {params['data']['skip_steps']} batches")
    cs_ip = f"{arguments.cs_ip}:9000" if arguments.cs_ip else None
    config = RunConfig(
        cs_ip=cs_ip,
        system_name=None,
        cs_config=utils.cs_config(params),
        stack_params=utils.stack_params(params["csconfig"]["use_cbfloat16"]),
        tf_random_seed=7,
        save_summary_steps=10,
        save_checkpoints_steps=20,
        keep_checkpoint_max=2,
        log_step_count_steps=10,
        train_distribute=None,
        eval_distribute=None,
        device_fn=None,
        **({"input_position": arguments.input_position} if arguments.input_position else {}),
    )
    print(f"task {config.task_id}")
    estimator = Estimator(model_fn, arguments.model_dir, config, params)
    use_cs = cs_ip is not None
    if arguments.mode == "validate_only" or arguments.validate_only:
        estimator.compile(input_fn, validate_only=True)
    elif arguments.mode == "compile_only" or arguments.compile_only:
        estimator.compile(input_fn, False, tf.estimator.ModeKeys.TRAIN)
    elif arguments.mode == "train":
        hooks = [tf.estimator.LoggingTensorHook([], every_n_iter=10, at_end=False)] if not use_cs else []
        estimator.train(input_fn, hooks, None, arguments.max_steps, None, use_cs)
    elif arguments.mode == "eval":
        checkpoint = tf.train.latest_checkpoint(arguments.model_dir)
        print(f"checkpoint of step {utils.checkpoint_steps(checkpoint)}")
        print(f"metrics: {estimator.evaluate(input_fn, arguments.eval_steps, None, checkpoint)}")
    else:
        classes = [int(prediction["classes"]) for prediction in estimator.predict(input_fn, num_samples=10)]
        print(f"classes: {classes}")


if __name__ == "__main__":
    tf.compat.v1.logging.set_verbosity(tf.compat.v1.logging.INFO)
    main()
