"""The command line of a `run.py`, its parameters, and the checked `runconfig`."""

from __future__ import annotations

import argparse
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import yaml

from cs_runtime.errors import CallError, suggestion
from cs_runtime.options import default_execution
from cs_toolkit.execution_options import (
    AUTO,
    Recompute,
    ReplicaChoice,
    ReplicaChoiceError,
    check_replicas,
    replica_choice,
    streaming,
)
from cs_toolkit.step import EXECUTION_CHOICES, ExecutionChoice
from cstorch.compatibility import log_unused

LOG_LEVELS = ("debug", "info", "warning", "error")


@dataclass(frozen=True)
class RunConfig:
    """How long to run, and what to leave behind.

    Attributes:
        model_dir: where results go.
        log_steps: a log line, and summaries, behind every so many steps; 0 for the last one alone.
        num_epochs: epochs to train; not together with `num_steps`.
        num_steps: steps to train.
        max_steps: global step to end at; needed where neither of the two is given.
        steps_per_epoch: steps of an epoch; all batches of the loader when None.
        eval_steps: steps of an evaluation; all batches of the loader when None.
        checkpoint_steps: a checkpoint behind every so many steps, and the last one; 0 for none at all.
        save_initial_checkpoint: one before the first step, too.
        save_losses: leaves `losses.json` with the losses that were logged.
        check_loss_values: a loss that is NaN or infinite ends the training.
        checkpoint_path: checkpoint to start with; the newest one of `model_dir` when None.
        is_pretrained_checkpoint: takes the weights of `checkpoint_path` and begins at step 0.
        save_stream_size: the first so many batches of the input are kept, in `stream` below `model_dir`.
        num_replicas: copies of the model on one wafer that share a batch: a number that divides the batch, or
            "auto" (also -1) for the one with the best predicted rate.
        fabric_config_file: YAML file of the fabric to compile for.
        seed: of weights, input and random operations.
        logging: level of the chief's log.
        streamer_logging: level of the workers' logs.
        service_dir: where files of the run go; `model_dir` when None.
        compile_dir: where artifacts go; `service_dir` when None.
        cs_ip: address of the CS system; this CPU without it.
        compile_only: compile, and stop.
        validate_only: check that the model compiles, and stop.
        mode: "train", "eval" or "train_and_eval".
        enable_summaries: refused on the CS system.
        grad_accum_steps: steps whose gradients are added up; 1 on the CS system.
        appliance: refused.
        multireplica: "auto" where `num_replicas` says nothing.
        execution: "auto", "pipelined" or "weight_streaming", see `cstorch.configure`.
        num_csx: CS systems of a group that share a batch.
        max_act_per_csx: limit of the activations that wait in each, see `cstorch.configure`.
        recompute: "auto", "none" or "all", see `cstorch.configure`.
        micro_batch_size: samples of a system that go through the layers together, see `cstorch.configure`.
        max_wgt_servers: MemoryX processes of the system that may share out the layers.
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
    num_replicas: ReplicaChoice | None = None
    fabric_config_file: str | None = None
    seed: int | None = None
    logging: str = "info"
    streamer_logging: str = "error"
    service_dir: str | None = None
    compile_dir: str | None = None
    cs_ip: str | None = None
    compile_only: bool = False
    validate_only: bool = False
    mode: str = "train"
    enable_summaries: bool = False
    grad_accum_steps: int = 1
    appliance: bool = False
    multireplica: bool = False
    execution: ExecutionChoice | None = None
    num_csx: int = 1
    max_act_per_csx: float | str | None = None
    recompute: Recompute | None = None
    micro_batch_size: int | str | None = None
    max_wgt_servers: int | None = None

    def streaming_fields(self) -> dict[str, Any]:
        """What holds where weights stream, as `cstorch.configure` takes it."""
        return {
            "num_csx": self.num_csx,
            "max_act_per_csx": self.max_act_per_csx,
            "recompute": self.recompute,
            "micro_batch_size": self.micro_batch_size,
        }

    @property
    def on_cs(self) -> bool:
        """Whether a CS system is used, or compiled for."""
        return self.cs_ip is not None or self.only_compiled

    @property
    def only_compiled(self) -> bool:
        """Whether nothing runs."""
        return self.compile_only or self.validate_only

    @classmethod
    def of(cls, params: Mapping[str, Any]) -> RunConfig:
        """Reads `runconfig`.

        Raises:
            CallError: a key is unknown or missing, or values contradict each other.
        """
        given = dict(params.get("runconfig", {}))
        known = [field.name for field in fields(cls)]
        for name in sorted(given.keys() - set(known)):
            raise CallError(
                f"runconfig has '{name}', expected {', '.join(known)}{suggestion(name, known)}; correct or "
                "remove it"
            )
        if given.get("log_steps") is None:
            raise CallError(
                "runconfig has no log_steps, expected a number of steps; 0 logs the last one alone"
            )
        given["model_dir"] = Path(given.get("model_dir") or "model_dir")
        made = cls(**{name: value for name, value in given.items() if value is not None})
        made._check_numbers()
        made._check_steps()
        made._check_place()
        return made

    def total_steps(self, first_step: int, epoch_steps: int) -> int:
        """Steps to train from a global step on.

        Args:
            first_step: global step of the checkpoint.
            epoch_steps: batches of the loader.

        Raises:
            StepsReachedError: none is left.
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
            "max_wgt_servers",
        )
        limits = {**dict.fromkeys(positive, 1), **dict.fromkeys(_COUNTS, 0)}
        for name, least in limits.items():
            value = getattr(self, name)
            if value is not None and (not isinstance(value, int) or value < least):
                raise CallError(f"runconfig: {name} is {value!r}, expected a whole number of {least} or more")
        try:
            streaming(**self.streaming_fields())
        except ValueError as error:
            raise CallError(f"runconfig: {error}") from None
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

    @property
    def replicas(self) -> ReplicaChoice:
        """How many copies are wanted."""
        default = AUTO if self.multireplica else 1
        return default if self.num_replicas is None else replica_choice(self.num_replicas)

    def _check_place(self) -> None:
        if self.execution is not None and self.execution not in EXECUTION_CHOICES:
            raise CallError(
                f"runconfig: execution is {self.execution!r}, expected one of "
                f"{', '.join(EXECUTION_CHOICES)}{suggestion(self.execution, EXECUTION_CHOICES)}"
            )
        try:
            check_replicas(self.replicas, self.execution or default_execution(), self.num_csx, None)
        except ReplicaChoiceError as error:
            raise CallError(f"runconfig: {error}") from None
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
                "size, and micro_batch_size, instead"
            )
        if self.enable_summaries:
            raise CallError(
                "enable_summaries is set on the CS system, expected False: values come back at log_steps "
                "alone"
            )

    def log_level(self, *, streams_alone: bool) -> int:
        """Level of the log of this task."""
        name = self.streamer_logging if streams_alone else self.logging
        return int(getattr(logging, name.upper()))


_COUNTS = ("log_steps", "checkpoint_steps", "save_stream_size")


class StepsReachedError(CallError, RuntimeError):
    """There is nothing left to train; a RuntimeError, as programs expect."""


EXECUTION_NAMES: Mapping[str, ExecutionChoice] = {
    "auto": "auto",
    "pipelined": "pipelined",
    "pipeline": "pipelined",
    "weight_streaming": "weight_streaming",
}
"""How programs name executions on the command line."""
MODES = ("train", "eval", "train_and_eval")

Params = dict[str, Any]
ExtraParsers = Callable[[], argparse.ArgumentParser | Iterable[argparse.ArgumentParser]]

_OF_THE_APPLIANCE: Mapping[str, Any] = {
    "credentials_path": None,
    "mgmt_address": "cluster-server.cerebras.com:443",
    "num_wgt_servers": 12,
    "debug_args_path": None,
}
_WITHOUT_EFFECT = "of the original's cluster, without effect, which the log says"
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


def parse(
    directory: Path, extra: ExtraParsers | None, argv: Sequence[str] | None
) -> tuple[argparse.Namespace, list[str]]:
    """The command line; wrong use ends the process with exit code 2.

    Args:
        directory: of the `run.py`, below which results go by default.
        extra: returns parsers of further flags.
        argv: the words; those of the process when None.

    Returns:
        The values, and the names of those that are the program's own.
    """
    parents = _listed(extra() if extra is not None else ())
    own = [action.dest for parent in parents for action in parent._actions if action.dest != "help"]
    parser = argparse.ArgumentParser(parents=parents, conflict_handler="resolve")
    add = parser.add_argument
    add("target", nargs="?", choices=("CSX", "CPU"), help="CPU: this CPU, whatever the parameters say")
    add("execution", nargs="?", choices=EXECUTION_NAMES, help="how the CS system executes a step")
    add("-p", "--params", required=True, type=Path, help="YAML file with the parameters")
    add("-m", "--mode", required=True, choices=MODES)
    add("-cs", "--cs_ip", help="address of the CS system: IP or IP:PORT; this CPU without it")
    add("-cpu", "--cpu", action="store_true", help="this CPU, whatever the parameters say")
    add("-o", "--model_dir", type=Path, default=directory / "model_dir", help="where results go")
    add("-c", "--compile_dir", help="where artifacts of the compiler go; the model_dir without it")
    add("--compile_only", action="store_true", help="compile, and stop")
    add("--validate_only", action="store_true", help="check that the model compiles, and stop")
    add("--checkpoint_path", help="checkpoint to begin with, or to evaluate")
    add("--is_pretrained_checkpoint", action="store_true", help="take its weights, and begin at step 0")
    add("--num_replicas", help="copies of the model on the wafer that share a batch: a number, or auto")
    add("--multireplica", action="store_true", help="--num_replicas=auto: as many copies as are fastest")
    add("--fabric_config_file", help="YAML file of the fabric to compile for")
    add("--config", help="options of the original compiler; without effect, which the log says")
    add("--logging", help="level of the log: debug, info, warning or error")
    add("--num_epochs", type=int, help="train so many epochs")
    add("--num_steps", type=int, help="train so many steps")
    add("--max_steps", type=int, help="train up to this global step")
    add("--eval_steps", type=int, help="batches to evaluate")
    add("--seed", type=int)
    add("--num_csx", type=int, help="CS systems of a group that share a batch, with weight streaming")
    add("--max_wgt_servers", type=int, help="MemoryX processes that may share out the layers, at most")
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


def merged(args: argparse.Namespace, own: Sequence[str]) -> Params:
    """The parameter file, with what the command line says in the place of `runconfig`'s entries.

    Args:
        args: the command line.
        own: names of the program's own flags.

    Raises:
        CallError: the file is not there or is no mapping, or flags exclude each other.
    """
    try:
        params = yaml.safe_load(args.params.read_text())
    except (OSError, yaml.YAMLError) as error:
        raise CallError(
            f"cannot read the parameter file '{args.params}': {error}; correct --params"
        ) from error
    if not isinstance(params, dict):
        raise CallError(
            f"'{args.params}' holds a {type(params).__name__}, expected a mapping with 'runconfig'"
        )
    run = dict(params.get("runconfig") or {})
    if args.num_steps is not None or args.max_steps is not None:
        run.pop("num_epochs", None)
    if args.num_epochs is not None:
        run.pop("num_steps", None)
    for name, value in vars(args).items():
        is_given = value is not None and value is not False  # 0 is a number
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
        run["cs_ip"] = None
    _announce(args)
    params["runconfig"] = run
    params["flags"] = {name: getattr(args, name) for name in own}
    return params


def _announce(args: argparse.Namespace) -> None:
    """Names flags without effect; an address that the run would not take is refused.

    Raises:
        CallError: it is given.
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


def _listed(parsers: Any) -> list[argparse.ArgumentParser]:
    """Parsers as parents of another one, which has its own `--help`."""
    found = [parsers] if isinstance(parsers, argparse.ArgumentParser) else list(parsers)
    for parser in found:
        parser.add_help = False
        for action in [x for x in parser._actions if x.dest == "help"]:
            parser._actions.remove(action)
            for option in action.option_strings:
                parser._option_string_actions.pop(option, None)
    return found
