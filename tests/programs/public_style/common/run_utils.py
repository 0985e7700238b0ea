"""The command line of the programs: arguments, parameters, and what each mode calls."""

import argparse
import os

import tensorflow as tf
import yaml

from common.stack import ON_STACK, Estimator, RunConfig

ModeKeys = tf.estimator.ModeKeys
MODES = ["train", "eval", "eval_all", "train_and_eval", "predict"]


def create_arg_parser(default_model_dir="model_dir"):
    parser = argparse.ArgumentParser()
    parser.add_argument("-p", "--params", required=True, help="path of a yaml file with parameters")
    parser.add_argument("-o", "--model_dir", default=default_model_dir)
    parser.add_argument("--cs_ip", default=None)
    parser.add_argument("--steps", type=int, default=None)
    parser.add_argument("--max_steps", type=int, default=None)
    parser.add_argument("--eval_steps", type=int, default=None)
    parser.add_argument("-m", "--mode", choices=MODES, default="train")
    parser.add_argument("--validate_only", action="store_true")
    parser.add_argument("--compile_only", action="store_true")
    parser.add_argument("--multireplica", action="store_true")
    parser.add_argument("--device", default=None)
    parser.add_argument("--checkpoint_path", default=None)
    return parser


def get_params(path, set_defaults):
    with open(path) as file:
        params = yaml.safe_load(file)
    set_defaults(params)
    return params


def update_params_from_args(args, params):
    for name, value in vars(args).items():
        if value is not None and name != "params":
            params["runconfig"][name] = value
    cs_ip = params["runconfig"].get("cs_ip")
    if cs_ip and ":" not in cs_ip:
        params["runconfig"]["cs_ip"] = cs_ip + ":9000"


def set_common_defaults(params):
    """What every program has, whatever its file says."""
    model = params["model"]
    model.setdefault("mixed_precision", True)
    model.setdefault("boundary_casting", False)
    model.setdefault("tf_summary", False)
    params["optimizer"].setdefault("loss_scaling_factor", 1.0)
    params["optimizer"].setdefault("max_gradient_norm", None)
    params.setdefault("csconfig", {})
    runconfig = params.setdefault("runconfig", {})
    runconfig.setdefault("save_summary_steps", 1)
    runconfig.setdefault("log_step_count_steps", 5)
    runconfig.setdefault("save_checkpoints_steps", 10)
    runconfig.setdefault("tf_random_seed", 1)


def check_env(runconfig):
    """Combinations that make no sense, before anything is built."""
    on_cs = is_cs(runconfig)
    if on_cs and runconfig["mode"] in ("eval_all", "train_and_eval"):
        raise OSError(f"{runconfig['mode']} is not supported on the CS system.")
    if on_cs and runconfig["mode"] == "eval" and not runconfig.get("eval_steps"):
        raise ValueError("eval_steps must be given to evaluate on the CS system.")
    if (runconfig.get("validate_only") or runconfig.get("compile_only")) and not ON_STACK:
        raise OSError("validation and compilation need the software of the CS system.")


def is_cs(runconfig):
    return ON_STACK and bool(runconfig.get("cs_ip"))


def save_params(params, model_dir):
    os.makedirs(model_dir, exist_ok=True)
    with open(os.path.join(model_dir, "params.yaml"), "w") as file:
        yaml.dump(params, file, default_flow_style=False)


def checkpoint_steps(model_dir):
    """The global step of the newest checkpoint, read as the stack reads weights."""
    from cerebras.tf.tf_helper import GetWeights

    checkpoint = tf.train.latest_checkpoint(model_dir)
    if checkpoint is None:
        return 0
    return next((int(value) for name, value in GetWeights(checkpoint) if name == "global_step"), 0)


def run_config(params, stack_params):
    run = params["runconfig"]
    extra = {}
    if ON_STACK:
        from cerebras.pb.tf.csconfig_pb2 import CSConfig

        extra = {"cs_config": CSConfig(**params["csconfig"]), "stack_params": stack_params}
    return RunConfig(
        cs_ip=run.get("cs_ip"),
        system_name=run.get("system_name"),
        tf_random_seed=run["tf_random_seed"],
        save_summary_steps=run["save_summary_steps"],
        save_checkpoints_steps=run["save_checkpoints_steps"],
        keep_checkpoint_max=run.get("keep_checkpoint_max", 5),
        log_step_count_steps=run["log_step_count_steps"],
        train_distribute=None,
        eval_distribute=None,
        device_fn=None,
        **extra,
    )


def run(args, params, model_fn, train_input_fn, eval_input_fn, stack_params=None):
    """Does what the arguments ask for."""
    update_params_from_args(args, params)
    runconfig = params["runconfig"]
    check_env(runconfig)
    if runconfig["multireplica"]:
        os.environ["CEREBRAS_CUSTOM_MONITORED_SESSION"] = "True"
    model_dir, mode = runconfig["model_dir"], runconfig["mode"]
    if params["train_input"].pop("skip_on_resume", False) and os.path.isdir(model_dir):
        params["train_input"]["skip_steps"] = checkpoint_steps(model_dir)
    save_params(params, model_dir)
    config = run_config(params, stack_params)
    estimator = Estimator(model_fn, model_dir, config, params)
    use_cs = is_cs(runconfig)
    if runconfig.get("validate_only") or runconfig.get("compile_only"):
        input_fn = train_input_fn if mode == "train" else eval_input_fn
        asked = ModeKeys.TRAIN if mode == "train" else ModeKeys.EVAL
        estimator.compile(input_fn, runconfig["validate_only"], asked)
    elif mode == "train":
        limits = {"steps": runconfig.get("steps"), "max_steps": runconfig.get("max_steps")}
        estimator.train(train_input_fn, use_cs=use_cs, **limits)
    elif mode == "eval":
        checkpoint, steps = runconfig.get("checkpoint_path"), runconfig.get("eval_steps")
        found = estimator.evaluate(eval_input_fn, steps, checkpoint_path=checkpoint, use_cs=use_cs)
        tell("metrics", found)
    elif mode == "eval_all":
        for checkpoint in tf.train.get_checkpoint_state(model_dir).all_model_checkpoint_paths:
            tell("metrics", estimator.evaluate(eval_input_fn, runconfig.get("eval_steps"), None, checkpoint))
    elif mode == "train_and_eval":
        train_spec = tf.estimator.TrainSpec(train_input_fn, max_steps=runconfig["max_steps"])
        eval_spec = tf.estimator.EvalSpec(eval_input_fn, runconfig.get("eval_steps"), throttle_secs=0)
        tell("metrics", tf.estimator.train_and_evaluate(estimator, train_spec, eval_spec))
    else:
        tell_predictions(estimator.predict(eval_input_fn, num_samples=4, use_cs=use_cs))


def tell(what, values):
    text = " ".join(f"{name}={float(value):.5g}" for name, value in sorted(values.items()))
    print(f"{what}: {text}", flush=True)


def tell_predictions(predictions):
    for number, prediction in enumerate(predictions):
        text = " ".join(f"{name}={value.ravel()[:4].tolist()}" for name, value in sorted(prediction.items()))
        print(f"prediction {number}: {text}", flush=True)
