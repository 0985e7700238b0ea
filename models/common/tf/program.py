"""The command line of all example programs, and its modes.

A `run.py` declares a `Program` and calls its `run`. TensorFlow is imported only after the command line and
the parameter file have been checked.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cs_toolkit.loader import load_model
from estimator import import_tensorflow
from models.common.tf.params import Params

if TYPE_CHECKING:
    from estimator import CerebrasEstimator

MODES = ("train", "eval", "eval_all", "train_and_eval", "predict", "compile_only", "validate_only")
_NOT_RUN_CONFIG = ("max_steps", "steps", "eval_steps")


@dataclass(frozen=True)
class Functions:
    """The functions that the estimator calls; an input function takes `params`."""

    model_fn: Callable[..., Any]
    train_input_fn: Callable[..., Any]
    eval_input_fn: Callable[..., Any]


def own_functions() -> Functions:
    """Import the functions of `model.py` and `data.py` next to the running `run.py`, and TensorFlow."""
    model, data = import_module("model"), import_module("data")
    return Functions(model.model_fn, data.train_input_fn, data.eval_input_fn)


@dataclass(frozen=True)
class Program:
    """An example program.

    Attributes:
        description: First text of its `--help`.
        folder: Folder of its `run.py`.
        params_file: The default parameter file, relative to that folder.
        params: Schema of a parameter file.
        data_help: Help text of `--data_dir`, with the default.
        initial_variables: Regular expression of the variables that training loads from `--checkpoint_path`.
        functions: Imports and returns its functions.
    """

    description: str | None
    folder: Path
    params_file: str
    params: type[Params]
    data_help: str
    initial_variables: str = ".*"
    functions: Callable[[], Functions] = own_functions

    def run(self, argv: Sequence[str] | None = None) -> None:
        """Run a command line; by default that of the process."""
        args = self.parse_arguments(argv)
        params = self.merge_params(args)
        import_tensorflow()
        functions = self.functions()
        estimator = make_estimator(args, params, functions.model_fn, self.initial_variables)
        _run(args, params, functions, estimator)

    def parse_arguments(self, argv: Sequence[str] | None = None) -> argparse.Namespace:
        """Parse a command line; incorrect usage ends the process with exit code 2."""
        parser = argparse.ArgumentParser(description=self.description)
        add = parser.add_argument
        add("-p", "--params", type=Path, default=self.folder / self.params_file, help="YAML file")
        add("-o", "--model_dir", type=Path, default=self.folder / "model_dir", help="folder of results")
        add("-m", "--mode", required=True, choices=MODES)
        add("--cs_ip", help="address of the CS system: IP or IP:PORT; without it, an embedded simulated one")
        add("--cpu", action="store_true", help="run on this CPU, with TensorFlow itself")
        add("--steps", type=int, help="train this many more steps")
        add("--max_steps", type=int, help="train to this global step")
        add("--eval_steps", type=int, help="batches to evaluate or predict; 0 or omitted: all")
        add("--num_csx", type=int, help="number of CS systems that share a batch, with weight streaming")
        add("--validate_only", action="store_true", help="check that the model compiles, and stop")
        add("--compile_only", action="store_true", help="compile, and stop")
        add("--data_dir", help=self.data_help)
        add("--checkpoint_path", help="evaluate or predict with it, or train from its weights")
        add("--device", help="run on this device of this host, e.g. CPU:0")
        add("--num_replicas", help="copies of the model on the wafer that share a batch: a number, or auto")
        add("--multireplica", action="store_true", help="--num_replicas=auto: the fastest number of copies")
        args = parser.parse_args(argv)
        if args.mode in ("compile_only", "validate_only"):
            setattr(args, args.mode, True)
            args.mode = "train"
        _check_arguments(parser, args)
        return args

    def merge_params(self, args: argparse.Namespace) -> dict[str, Any]:
        """Return the parameter file, with values overridden by the command line.

        Raises:
            ConfigError: The file is missing, or has unknown, duplicate or invalid entries.
        """
        params = load_model(args.params, self.params).plain()
        run = params["runconfig"]
        if args.steps is not None:
            run.update(steps=args.steps, max_steps=None)
        if args.max_steps is not None:
            run.update(steps=None, max_steps=args.max_steps)
        if args.num_csx is not None:
            run["num_csx"] = args.num_csx
        if args.num_replicas is not None:
            run["num_replicas"] = args.num_replicas
        elif args.multireplica:
            run["num_replicas"] = "auto"
        if args.eval_steps is not None:
            run["eval_steps"] = args.eval_steps
        if run["eval_steps"] is not None and run["eval_steps"] <= 0:
            run["eval_steps"] = None
        if args.data_dir is not None:
            for group in ("train_input", "eval_input"):
                params[group]["data_dir"] = str(Path(args.data_dir).resolve())
        return params


def make_estimator(
    args: argparse.Namespace, params: dict[str, Any], model_fn: Callable[..., Any], initial_variables: str
) -> CerebrasEstimator:
    """Make the estimator of a command; `initial_variables` is that of its `Program`."""
    from estimator import CerebrasEstimator, CSRunConfig, WarmStartSettings

    fields = {key: value for key, value in params["runconfig"].items() if key not in _NOT_RUN_CONFIG}
    config = CSRunConfig(cs_ip=args.cs_ip, device_fn=args.device and f"/device:{args.device}", **fields)
    warm_start = None
    if args.checkpoint_path is not None and args.mode in ("train", "train_and_eval"):
        warm_start = WarmStartSettings(args.checkpoint_path, initial_variables)
    return CerebrasEstimator(
        model_fn,
        model_dir=args.model_dir,
        config=config,
        params=params,
        warm_start_from=warm_start,
        use_cs=not args.cpu,
    )


def _check_arguments(parser: argparse.ArgumentParser, args: argparse.Namespace) -> None:
    if args.validate_only and args.compile_only:
        parser.error("--validate_only and --compile_only exclude each other; pass one of them")
    if args.steps is not None and args.max_steps is not None:
        parser.error(f"--steps {args.steps} and --max_steps {args.max_steps} exclude each other; pass one")
    for name in ("steps", "max_steps"):
        value = getattr(args, name)
        if value is not None and value <= 0:
            parser.error(f"--{name} must be > 0, got {value}")
    if args.multireplica and args.num_replicas not in (None, "auto"):
        parser.error(f"--multireplica and --num_replicas {args.num_replicas} exclude each other; pass one")
    if args.device is not None and args.cs_ip is not None:
        parser.error(f"--device {args.device} is for this CPU, got --cs_ip {args.cs_ip}; pass one of them")
    if args.cpu and args.cs_ip is not None:
        parser.error(f"--cpu and --cs_ip {args.cs_ip} exclude each other; pass one of them")
    args.cpu = args.cpu or args.device is not None
    _report_unused(parser, args)


def _report_unused(parser: argparse.ArgumentParser, args: argparse.Namespace) -> None:
    """Print the flags that a run does not use."""
    if args.compile_only or args.validate_only:  # these accept the command line of the run that follows
        return
    trains = args.mode.startswith("train")
    unused = {
        "steps": not trains and "it is for training; --eval_steps is for this mode",
        "max_steps": not trains and "it is for training; --eval_steps is for this mode",
        "eval_steps": args.mode == "train" and "it is for evaluations and predictions",
        "checkpoint_path": args.mode == "eval_all" and "all checkpoints are evaluated; use --mode eval",
    }
    for name, why in unused.items():
        if why and getattr(args, name) is not None:
            line = f"{parser.prog}: --{name} has no effect with --mode {args.mode}: {why}\n"
            sys.stderr.write(line)


def _run(
    args: argparse.Namespace, params: dict[str, Any], functions: Functions, estimator: CerebrasEstimator
) -> None:
    from estimator import ModeKeys

    run_params = params["runconfig"]
    if args.validate_only or args.compile_only:
        mode = {"eval": ModeKeys.EVAL, "predict": ModeKeys.PREDICT}.get(args.mode, ModeKeys.TRAIN)
        input_fn = functions.train_input_fn if mode == ModeKeys.TRAIN else functions.eval_input_fn
        estimator.compile(input_fn, validate_only=args.validate_only, mode=mode)
    elif args.mode == "train":
        estimator.train(
            functions.train_input_fn, steps=run_params["steps"], max_steps=run_params["max_steps"]
        )
    elif args.mode == "train_and_eval":
        _train_and_eval(estimator, run_params, functions)
    elif args.mode == "predict":
        _predict(estimator, args, params, functions)
    else:
        _evaluate(estimator, args, run_params["eval_steps"], functions)


def _evaluate(
    estimator: CerebrasEstimator, args: argparse.Namespace, steps: int | None, functions: Functions
) -> None:
    """Print the metrics of the newest, of the given, or of every checkpoint."""
    from estimator.checkpoints import all_of

    paths = all_of(args.model_dir) if args.mode == "eval_all" else [args.checkpoint_path]
    for path in paths:
        _show(
            estimator.evaluate(
                functions.eval_input_fn, steps=steps, checkpoint_path=path, use_cs=args.cs_ip is not None
            )
        )


def _train_and_eval(estimator: CerebrasEstimator, run_params: dict[str, Any], functions: Functions) -> None:
    """Train, and evaluate every checkpoint."""
    from estimator import EvalSpec, TrainSpec, train_and_evaluate

    steps, max_steps = run_params["steps"], run_params["max_steps"]
    if steps is not None:
        checkpoint = estimator.latest_checkpoint()
        max_steps = steps + (int(estimator.get_variable_value("global_step")) if checkpoint else 0)
    eval_spec = EvalSpec(
        functions.eval_input_fn, run_params["eval_steps"], start_delay_secs=0, throttle_secs=0
    )
    _show(train_and_evaluate(estimator, TrainSpec(functions.train_input_fn, max_steps), eval_spec))


def _predict(
    estimator: CerebrasEstimator, args: argparse.Namespace, params: dict[str, Any], functions: Functions
) -> None:
    """Write the predictions for the test records to `predict/predictions_{cs|tf}_<task>.npz`."""
    import numpy as np

    use_cs = args.cs_ip is not None
    steps = params["runconfig"]["eval_steps"]
    samples = None if steps is None else steps * params["eval_input"]["batch_size"]
    predictions: Iterable[dict[str, Any]] = estimator.predict(
        functions.eval_input_fn, checkpoint_path=args.checkpoint_path, num_samples=samples, use_cs=use_cs
    )
    records = list(predictions)
    if not records:
        return
    folder = Path(estimator.model_dir) / "predict"
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"predictions_{'cs' if use_cs else 'tf'}_{estimator.config.task_id}.npz"
    arrays: dict[str, Any] = {name: np.stack([r[name] for r in records]) for name in records[0]}
    np.savez(path, **arrays)
    print(f"{len(records)} predictions: {path}")


def _show(metrics: dict[str, Any]) -> None:
    """Print metrics on one line; nothing in a task without metrics."""
    if metrics:
        print(", ".join(f"{name} = {metrics[name]:.6g}" for name in sorted(metrics)), flush=True)
