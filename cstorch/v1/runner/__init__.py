"""`run(model_fn, train_data_fn, eval_data_fn)`, which a `run.py` calls, with the flags of releases 1.x."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from cs_runtime import exits, terminal
from cs_runtime.errors import CallError
from cs_runtime.files import write_text
from cs_runtime.run_files import params_yaml
from cstorch.errors import essence
from cstorch.loop import base
from cstorch.program import Program
from cstorch.startup import take_requests
from cstorch.v1.runner import settings
from cstorch.v1.runner.runner import LossValueError, Model, Runner
from cstorch.v1.runner.settings import RunConfig
from cstorch.v1.session import initialize
from cstorch.v1.session.core import cb_model as cm
from cstorch.v1.session.core import modes

__all__ = ["LossValueError", "Model", "RunConfig", "Runner", "run"]

ModelFn = Callable[[dict[str, Any]], torch.nn.Module | Model]
DataFn = Callable[[dict[str, Any]], Any]


def run(
    model_fn: ModelFn,
    train_data_fn: DataFn | None = None,
    eval_data_fn: DataFn | None = None,
    default_params_fn: Callable[[dict[str, Any]], dict[str, Any] | None] | None = None,
    extra_args_parser_fn: settings.ExtraParsers | None = None,
    runner: type[Runner] = Runner,
    argv: Sequence[str] | None = None,
) -> Runner:
    """Run the command line; every task of a job makes the same call.

    Args:
        model_fn: Returns a network whose call with a batch returns the loss, or a `Model`.
        train_data_fn: Returns the loader of a training run, in every task.
        eval_data_fn: Returns the loader of an evaluation.
        default_params_fn: Completes the parameters, in place or in a new mapping.
        extra_args_parser_fn: Returns parsers of further flags, whose values are in `params["flags"]`.
        runner: Class with the program's hooks.
        argv: Command line; None for that of the process.

    Returns:
        The runner, after it has finished.

    Raises:
        CallError: Flags or parameters are invalid; a ValueError.
    """
    directory = Path(sys.argv[0]).resolve().parent
    args, own = settings.parse(directory, extra_args_parser_fn, argv)
    exits.report_at_exit(base.report_unfinished, essence)
    params = settings.merge_params(args, own)
    if default_params_fn is not None:
        params = default_params_fn(params) or params
    config = RunConfig.of(params)
    _start(config)
    model = model_fn(params)
    made = runner(model if isinstance(model, Model) else Model(model, params), config)
    _save_params(config, params)
    _do(made, config, params, train_data_fn, eval_data_fn)
    return made


def _start(config: RunConfig) -> None:
    workdir = Path(config.service_dir or config.model_dir)
    if config.on_cs:
        initialize(
            cs_ip=config.cs_ip,
            service_workdir=workdir,
            compile_dir=config.compile_dir,
            compile_only=config.only_compiled,
        )
        Program.current().change_configuration(options=config.options)
    else:
        initialize(service_workdir=workdir, use_cs=False)
        take_requests()
    terminal.configure_logging("cstorch")
    for name in (*terminal.PACKAGES, "cstorch"):
        logger = logging.getLogger(name)
        Program.current().cleanup.callback(logger.setLevel, logger.level)
        logger.setLevel(config.log_level(only_streams=not cm.is_master_ordinal()))
    if config.seed is not None:
        cm.set_rng_state(config.seed)


def _save_params(config: RunConfig, params: dict[str, Any]) -> None:
    if cm.is_master_ordinal():
        write_text(config.model_dir / config.mode / f"params_{config.mode}.yaml", params_yaml(params))


def _do(
    runner: Runner,
    config: RunConfig,
    params: dict[str, Any],
    train_data_fn: DataFn | None,
    eval_data_fn: DataFn | None,
) -> None:
    trains = config.mode != modes.EVAL
    train_data = _data(train_data_fn, "train_data_fn", params) if trains else None
    evaluates = not trains or config.mode == modes.TRAIN_AND_EVAL
    eval_data = _data(eval_data_fn, "eval_data_fn", params) if evaluates else None
    if config.only_compiled:
        runner.compile(train_data if trains else eval_data, modes.TRAIN if trains else modes.EVAL)
        return
    runner.load_checkpoint()
    if config.mode == modes.TRAIN_AND_EVAL:
        runner.train_and_evaluate(train_data, eval_data)
    elif trains:
        runner.train(train_data)
    else:
        runner.evaluate(eval_data)


def _data(function: DataFn | None, name: str, params: dict[str, Any]) -> Any:
    if function is None:
        raise CallError(f"run() got no {name}, expected a function that returns a DataLoader for this mode")
    return function(params)
