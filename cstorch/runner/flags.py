"""The command line of a `run.py`, and the parameters that it changes."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from cs_runtime.errors import CallError
from cs_toolkit.step import ExecutionChoice
from cstorch.compatibility import announce_unused

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
    announce_unused("flags", given, _OF_THE_APPLIANCE)


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
