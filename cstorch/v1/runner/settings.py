"""The command line of a `run.py`, its parameters, and the checked `runconfig`."""

from __future__ import annotations

import argparse
import logging
import reprlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from os import PathLike
from pathlib import Path
from typing import Any

from cs_runtime.errors import CallError
from cs_runtime.options import ORIGINAL_ADDRESS
from cs_toolkit.errors import suggestion
from cs_toolkit.execution_options import AUTO, OPTIONS, SHARED_OPTIONS, ExecutionOptions, OptionError
from cs_toolkit.loader import load_yaml
from cs_toolkit.step import ExecutionChoice
from cstorch.compatibility import log_unused

LOG_LEVELS = ("debug", "info", "warning", "error")

_COUNTS = ("log_steps", "checkpoint_steps", "save_stream_size")

EXECUTION_NAMES: Mapping[str, ExecutionChoice] = {
    "auto": "auto",
    "pipelined": "pipelined",
    "pipeline": "pipelined",
    "weight_streaming": "weight_streaming",
}
"""Execution modes by their names on the command line."""

MODES = ("train", "eval", "train_and_eval")

Params = dict[str, Any]

ExtraParsers = Callable[[], argparse.ArgumentParser | Iterable[argparse.ArgumentParser]]

_OF_THE_APPLIANCE: Mapping[str, Any] = {
    "credentials_path": None,
    "mgmt_address": ORIGINAL_ADDRESS,
    "num_wgt_servers": 12,
    "debug_args_path": None,
}

_WITHOUT_EFFECT = "of the original's cluster, without effect, which is logged"

_NOT_RUN_CONFIG = (
    "params",
    "cpu",
    "target",
    "execution",
    "config",
    "mount_dirs",
    "python_paths",
    *_OF_THE_APPLIANCE,
)


@dataclass(frozen=True)
class RunConfig:
    """The settings of a run in `runconfig`.

    Attributes:
        model_dir: Directory for results.
        log_steps: Interval of log lines and summaries; 0 for the last step only.
        num_epochs: Epochs to train; not together with `num_steps`.
        num_steps: Steps to train.
        max_steps: Global step to end at; required if neither of the two is given.
        steps_per_epoch: Steps of an epoch; None for all batches of the loader.
        eval_steps: Steps of an evaluation; None for all batches of the loader.
        checkpoint_steps: Interval of checkpoints, which includes the last step; 0 for none.
        save_initial_checkpoint: Also write a checkpoint before the first step.
        save_losses: Write the logged losses to `losses.json`.
        check_loss_values: End the training run if the loss becomes NaN or infinite.
        checkpoint_path: Checkpoint to start from; None for the newest one of `model_dir`.
        is_pretrained_checkpoint: Load only the weights of `checkpoint_path`, and begin at step 0.
        save_stream_size: Number of batches of the input to write to `stream` below `model_dir`.
        fabric_config_file: YAML file of the fabric to compile for.
        seed: Seed of weights, input and random operations.
        logging: Level of the chief's log.
        streamer_logging: Level of the workers' logs.
        service_dir: Directory for the files of the run; None for `model_dir`.
        compile_dir: Directory for compile artifacts; None for `service_dir`.
        cs_ip: Address of the CS system; None for that of CS_IP or the site, else an embedded one.
        cpu: Run on this CPU.
        compile_only: Compile, and stop.
        validate_only: Check that the model can be compiled, and stop.
        mode: "train", "eval" or "train_and_eval".
        enable_summaries: Refused on the CS system.
        grad_accum_steps: Steps whose gradients are accumulated; 1 on the CS system.
        appliance: Refused.
        multireplica: Default of `num_replicas` is "auto".
        options: How the CS system executes the steps; each option is a key of `runconfig`.
    """

    model_dir: Path
    log_steps: int
    num_epochs: int | None = None
    num_steps: int | None = None
    max_steps: int | None = None
    steps_per_epoch: int | None = None
    eval_steps: int | None = None
    checkpoint_steps: int = 0
    save_initial_checkpoint: bool = False
    save_losses: bool = False
    check_loss_values: bool = True
    checkpoint_path: str | None = None
    is_pretrained_checkpoint: bool = False
    save_stream_size: int = 0
    fabric_config_file: str | None = None
    seed: int | None = None
    logging: str = "info"
    streamer_logging: str = "error"
    service_dir: str | None = None
    compile_dir: str | None = None
    cs_ip: str | None = None
    cpu: bool = False
    compile_only: bool = False
    validate_only: bool = False
    mode: str = "train"
    enable_summaries: bool = False
    grad_accum_steps: int = 1
    appliance: bool = False
    multireplica: bool = False
    options: ExecutionOptions = field(default_factory=ExecutionOptions)

    @property
    def on_cs(self) -> bool:
        """True if a CS system is used, or compiled for."""
        return not self.cpu or self.only_compiled

    @property
    def only_compiled(self) -> bool:
        """True if the model is only compiled or validated."""
        return self.compile_only or self.validate_only

    @classmethod
    def of(cls, params: Mapping[str, Any]) -> RunConfig:
        """Create the settings from the parameters' `runconfig`.

        Raises:
            CallError: A key is unknown or missing, or values contradict each other.
        """
        given = _runconfig(params)
        known = [*(member.name for member in fields(cls) if member.name != "options"), *SHARED_OPTIONS]
        for name in sorted(given.keys() - set(known)):
            raise CallError(
                f"runconfig has '{name}', expected {', '.join(known)}{suggestion(name, known)}; correct or "
                "remove it"
            )
        if given.get("log_steps") is None:
            raise CallError(
                "runconfig has no log_steps, expected a number of steps; 0 logs only the last one"
            )
        model_dir = given.get("model_dir") or "model_dir"
        if not isinstance(model_dir, str | PathLike):
            raise CallError(f"runconfig: model_dir is {model_dir!r}, expected a path")
        given["model_dir"] = Path(model_dir)
        options = {name: given.pop(name) for name in SHARED_OPTIONS if name in given}
        if given.get("multireplica") and options.get("num_replicas") is None:
            options["num_replicas"] = AUTO
        try:
            given["options"] = ExecutionOptions().change(options)
            given["options"].check()
        except OptionError as error:
            raise CallError(f"runconfig: {error}") from None
        config = cls(**{name: value for name, value in given.items() if value is not None})
        config._check_numbers()
        config._check_steps()
        config._check_target()
        return config

    def total_steps(self, first_step: int, epoch_steps: int) -> int:
        """Return the steps to train from a global step on.

        Args:
            first_step: Global step of the checkpoint.
            epoch_steps: Batches of the loader.

        Raises:
            StepsReachedError: No step is left.
        """
        if self.max_steps is not None and first_step >= self.max_steps:
            raise StepsReachedError(
                f"global step {first_step} has reached max_steps {self.max_steps}, expected fewer: raise "
                "max_steps, or train into another model_dir"
            )
        wanted = self.num_steps
        if self.num_epochs is not None:
            wanted = self.num_epochs * (self.steps_per_epoch or epoch_steps)
        left = None if self.max_steps is None else self.max_steps - first_step
        return min(steps for steps in (wanted, left) if steps is not None)

    def _check_numbers(self) -> None:
        positive = (
            "num_epochs",
            "num_steps",
            "max_steps",
            "steps_per_epoch",
            "eval_steps",
            "grad_accum_steps",
        )
        limits = {**dict.fromkeys(positive, 1), **dict.fromkeys(_COUNTS, 0)}
        for name, least in limits.items():
            value = getattr(self, name)
            if value is not None and (not isinstance(value, int) or value < least):
                raise CallError(f"runconfig: {name} is {value!r}, expected a whole number of {least} or more")
        for name in ("logging", "streamer_logging"):
            if str(getattr(self, name)).lower() not in LOG_LEVELS:
                raise CallError(
                    f"runconfig: {name} is {getattr(self, name)!r}, expected one of {', '.join(LOG_LEVELS)}"
                )

    def _check_steps(self) -> None:
        if self.num_epochs is not None and self.num_steps is not None:
            raise CallError(
                f"runconfig: num_epochs is {self.num_epochs} and num_steps is {self.num_steps}, expected one "
                "of them; remove the other"
            )
        trains = self.mode != "eval" and not self.only_compiled
        if trains and self.num_epochs is None and self.num_steps is None and self.max_steps is None:
            raise CallError(
                "runconfig has neither num_epochs, num_steps nor max_steps, expected one of them: say how "
                "long to train"
            )

    def _check_target(self) -> None:
        if self.compile_only and self.validate_only:
            raise CallError("compile_only and validate_only are both given, expected one of them")
        if self.appliance:
            raise CallError(
                "--appliance is given, expected --cs_ip=IP:PORT: the system is reached by its address"
            )
        if not self.on_cs:
            return
        if self.grad_accum_steps != 1:
            raise CallError(
                f"grad_accum_steps is {self.grad_accum_steps} on the CS system, expected 1: choose the batch "
                "size, and micro_batch_size, instead, or --cpu"
            )
        if self.enable_summaries:
            raise CallError(
                "enable_summaries is set on the CS system, expected False: values are fetched only at "
                "log_steps; or pass --cpu"
            )

    def log_level(self, *, only_streams: bool) -> int:
        """Return the log level of this task."""
        name = self.streamer_logging if only_streams else self.logging
        return int(getattr(logging, name.upper()))


class StepsReachedError(CallError, RuntimeError):
    """No step is left to train; a RuntimeError, as programs expect."""


def parse(
    directory: Path, extra: ExtraParsers | None, argv: Sequence[str] | None
) -> tuple[argparse.Namespace, list[str]]:
    """Parse the command line; invalid usage ends the process with exit code 2.

    Args:
        directory: Directory of the `run.py`, the default parent of `model_dir`.
        extra: Returns parsers of further flags.
        argv: Arguments; None for those of the process.

    Returns:
        The values, and the names of the program's own flags.
    """
    parents = _parent_parsers(extra() if extra is not None else ())
    own = [action.dest for parent in parents for action in parent._actions if action.dest != "help"]
    parser = argparse.ArgumentParser(parents=parents, conflict_handler="resolve")
    add = parser.add_argument
    add("target", nargs="?", choices=("CSX", "CPU"), help="CPU: this CPU, regardless of the parameters")
    add("execution", nargs="?", choices=EXECUTION_NAMES, help="execution mode of the CS system")
    add("-p", "--params", required=True, type=Path, help="YAML file with the parameters")
    add("-m", "--mode", required=True, choices=MODES)
    add("-cs", "--cs_ip", help="address of the CS system: IP or IP:PORT; an embedded one without it")
    add("-cpu", "--cpu", action="store_true", help="this CPU, regardless of the parameters")
    add("-o", "--model_dir", type=Path, default=directory / "model_dir", help="directory for results")
    add("-c", "--compile_dir", help="directory for compile artifacts; the model_dir without it")
    add("--compile_only", action="store_true", help="compile, and stop")
    add("--validate_only", action="store_true", help="check that the model can be compiled, and stop")
    add("--checkpoint_path", help="checkpoint to start from, or to evaluate")
    add("--is_pretrained_checkpoint", action="store_true", help="load its weights, and begin at step 0")
    add("--multireplica", action="store_true", help="--num_replicas=auto: the fastest number of copies")
    add("--fabric_config_file", help="YAML file of the fabric to compile for")
    add("--config", help="options of the original's compiler, without effect, which is logged")
    add("--logging", help="level of the log: debug, info, warning or error")
    add("--num_epochs", type=int, help="number of epochs to train")
    add("--num_steps", type=int, help="number of steps to train")
    add("--max_steps", type=int, help="global step to train up to")
    add("--eval_steps", type=int, help="number of batches to evaluate")
    add("--seed", type=int)
    for name, option in OPTIONS.items():
        if option.flag is not None:
            add(f"--{name}", type=option.flag, help=option.help)
    add("--appliance", action="store_true", help="of later releases; refused")
    for name, default in _OF_THE_APPLIANCE.items():
        add(
            f"--{name}",
            type=type(default) if default is not None else str,
            default=default,
            help="refused; give --cs_ip" if name == "mgmt_address" else _WITHOUT_EFFECT,
        )
    for name in ("mount_dirs", "python_paths"):
        add(f"--{name}", nargs="+", default=[], help=f"{_WITHOUT_EFFECT}; csrun has --mount-dirs")
    return parser.parse_args(argv), own


def _runconfig(params: Mapping[str, Any]) -> dict[str, Any]:
    """Return a copy of the parameters' `runconfig`.

    Raises:
        CallError: It is not a mapping with texts as keys.
    """
    found = params.get("runconfig") or {}
    if not isinstance(found, dict) or not all(isinstance(name, str) for name in found):
        raise CallError(f"runconfig is {reprlib.repr(found)}, expected a mapping of names to values")
    return dict(found)


def merge_params(args: argparse.Namespace, own: Sequence[str]) -> Params:
    """Return the parameters of the file, with the command line's values in `runconfig`.

    Args:
        args: Command line.
        own: Names of the program's own flags.

    Raises:
        ConfigError: The file is missing or is not YAML.
        CallError: It is not a mapping, or flags exclude each other.
    """
    params = load_yaml(args.params)
    if not isinstance(params, dict):
        raise CallError(
            f"'{args.params}' holds a {type(params).__name__}, expected a mapping with 'runconfig'"
        )
    run = _runconfig(params)
    if args.num_steps is not None or args.max_steps is not None:
        run.pop("num_epochs", None)
    if args.num_epochs is not None:
        run.pop("num_steps", None)
    for name, value in vars(args).items():
        is_given = value is not None and value is not False  # 0 is a value
        if name not in (*_NOT_RUN_CONFIG, *own) and is_given:
            run[name] = str(value) if isinstance(value, Path) else value
    if args.multireplica and args.num_replicas not in (None, "auto"):
        raise CallError(
            f"--multireplica and --num_replicas {args.num_replicas} exclude each other; give one of them"
        )
    if args.multireplica:
        run["num_replicas"] = "auto"
    if args.execution is not None:
        run["execution"] = EXECUTION_NAMES[args.execution]
    if args.cpu or args.target == "CPU":
        run.update(cpu=True, cs_ip=None)
    _log_unused_flags(args)
    params["runconfig"] = run
    params["flags"] = {name: getattr(args, name) for name in own}
    return params


def _log_unused_flags(args: argparse.Namespace) -> None:
    """Log the given flags without effect.

    Raises:
        CallError: An address of the original's cluster is given.
    """
    if args.mgmt_address != _OF_THE_APPLIANCE["mgmt_address"]:
        raise CallError(
            f"--mgmt_address {args.mgmt_address} is of the original's cluster; give the address of the CS "
            "system as --cs_ip=IP:PORT"
        )
    given = {
        name: getattr(args, name) for name in (*_OF_THE_APPLIANCE, "config", "mount_dirs", "python_paths")
    }
    log_unused("flags", given, _OF_THE_APPLIANCE)


def _parent_parsers(parsers: Any) -> list[argparse.ArgumentParser]:
    """Return parsers without `--help`, as parents of another one, which has its own."""
    found = [parsers] if isinstance(parsers, argparse.ArgumentParser) else list(parsers)
    for parser in found:
        parser.add_help = False
        for action in [x for x in parser._actions if x.dest == "help"]:
            parser._actions.remove(action)
            for option in action.option_strings:
                parser._option_string_actions.pop(option, None)
    return found
