"""Optimizers and learning rate schedules by name, from configuration files."""

from __future__ import annotations

import inspect
import logging
import sys
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import accumulate
from typing import Any

import torch
from torch import nn

from cs_toolkit.errors import suggestion
from cs_toolkit.subclasses import find_program_class
from cstorch.errors import OptimizerArgumentError, ScheduleError, ScheduleTypeError
from cstorch.optim.lr_scheduler import (
    ChainedLR,
    ConstantLR,
    LRScheduler,
    PiecewiseConstantLR,
    ScalePerParamLR,
    SequentialLR,
)
from cstorch.optim.optimizer import Optimizer
from cstorch.optim.registry import OPTIMIZERS
from cstorch.optim.scheduler import ChainedScheduler, ScalePerParamScheduler, SequentialScheduler

log = logging.getLogger("cstorch")

_OPTIMIZER_ALIASES = {"learning_rate": "lr", "weight_decay_rate": "weight_decay"}

_KINDS: dict[str, Callable[[str], bool]] = {
    "decoder_kernel": lambda name: "weight" in name and ("linear" in name or "dense" in name),
    "embedding": lambda name: "weight" in name and "embedding" in name,
}
"""Kinds of layers with their own factors, by the names of their parameters."""
_SCHEDULE_ALIASES = {
    "steps": "total_iters",
    "decay_steps": "total_iters",
    "learning_rate": "initial_learning_rate",
    "base_lr": "initial_learning_rate",
    "values": "learning_rates",
    "boundaries": "milestones",
}


def configure_optimizer(optimizer_type: str, params: Iterable[Any], **kwargs: Any) -> Optimizer:
    """Make an optimizer by its name.

    Args:
        optimizer_type: name of a class, in small or capital letters; also one that the program defines.
        params: parameters, or groups of them.
        kwargs: arguments of the class, also by the names `learning_rate`, `weight_decay_rate`, and `beta1`
            with `beta2`. Arguments that the class does not take are left out: the optimizer section of a
            configuration also has settings of schedules and loss scales.

    Raises:
        OptimizerArgumentError: there is no such optimizer, or an argument is given by two names.
    """
    made, given = configure_optimizer_params(optimizer_type, kwargs)
    return made(params, **given)


def configure_optimizer_params(
    optimizer_type: str, kwargs: dict[str, Any]
) -> tuple[type[Optimizer], dict[str, Any]]:
    """Return the class of an optimizer, and the arguments that it takes under its own names.

    Arguments and errors are those of `configure_optimizer`.
    """
    made = OPTIMIZERS.get(optimizer_type.lower()) or find_program_class(Optimizer, optimizer_type)
    if made is None:
        names = ", ".join(sorted(known.__name__ for known in OPTIMIZERS.values()))
        raise OptimizerArgumentError(f"optimizer_type is {optimizer_type!r}, expected one of {names}")
    given = _by_own_names(made, kwargs)
    taken = inspect.signature(made).parameters.keys() - {"params"}
    unused = sorted(given.keys() - taken)
    for name in unused:
        # A setting of a schedule or a loss scale resembles no argument; a typo does.
        if near := suggestion(name, taken):
            log.warning("%s has no argument '%s', which is ignored%s", made.__name__, name, near)
    if unused:
        log.debug("%s has no arguments %s: ignoring them", made.__name__, ", ".join(unused))
    return made, {name: value for name, value in given.items() if name in taken}


def _by_own_names(made: type[Optimizer], given: dict[str, Any]) -> dict[str, Any]:
    renamed = dict(given)
    for alias, name in _OPTIMIZER_ALIASES.items():
        if alias in renamed and not isinstance(renamed[alias], dict | list | tuple):
            _set_once(renamed, alias, name, renamed.pop(alias))
    takes_betas = "betas" in inspect.signature(made).parameters
    if takes_betas and renamed.keys() >= {"beta1", "beta2"}:
        _set_once(renamed, "beta1 and beta2", "betas", (renamed.pop("beta1"), renamed.pop("beta2")))
    return renamed


def _set_once(given: dict[str, Any], alias: str, name: str, value: Any) -> None:
    if name in given:
        raise OptimizerArgumentError(f"got both {alias} and {name}, expected one of them; leave one out")
    given[name] = value


def configure_param_groups(
    model: nn.Module,
    optimizer_params: dict[str, Any],
    no_decay: Callable[[str, nn.Parameter], bool] | None = None,
) -> list[dict[str, Any]]:
    """Return the parameters of a model in two groups: with the given weight decay, and without.

    Args:
        model: the model; parameters without `requires_grad` are left out.
        optimizer_params: has `weight_decay` or `weight_decay_rate`; without it no parameter decays. With
            `adjust_learning_rate`, factors by kind of layer, `embedding` or `decoder_kernel` (weights of
            linear layers), each group is split by factor, which becomes its entry of that name.
        no_decay: returns True if a parameter of a name does not decay; by default biases and the parameters
            of normalization layers do not.

    Returns:
        Groups for an optimizer; empty ones are left out.
    """
    rate = optimizer_params.get("weight_decay", optimizer_params.get("weight_decay_rate", 0.0))
    groups: tuple[list[nn.Parameter], list[nn.Parameter]] = [], []
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            if no_decay:
                exempt = no_decay(name, parameter)
            else:
                module, _, own = name.rpartition(".")
                exempt = own.endswith("bias") or "Norm" in type(model.get_submodule(module)).__name__
            groups[exempt].append(parameter)
    rated = zip(groups, (rate, 0.0), strict=True)
    found = [{"params": group, "weight_decay": value} for group, value in rated if group]
    factors = optimizer_params.get("adjust_learning_rate")
    return _split_by_factor(model, found, factors) if factors else found


def _split_by_factor(
    model: nn.Module, groups: list[dict[str, Any]], factors: dict[str, float]
) -> list[dict[str, Any]]:
    unknown = sorted(factors.keys() - _KINDS.keys())
    if unknown:
        raise OptimizerArgumentError(
            f"adjust_learning_rate has {', '.join(unknown)}, expected some of {', '.join(_KINDS)}"
        )
    factor_of = {
        id(parameter): next((factors[kind] for kind in factors if _KINDS[kind](name)), 1.0)
        for name, parameter in model.named_parameters()
    }
    found = []
    for group in groups:
        for factor in dict.fromkeys([*factors.values(), 1.0]):
            members = [p for p in group["params"] if factor_of[id(p)] == factor]
            if members:
                found.append({**group, "params": members, "adjust_learning_rate": factor})
    return found


def configure_lr_scheduler(
    optimizer: torch.optim.Optimizer,
    learning_rate: float | Mapping[str, Any] | Sequence[Mapping[str, Any]],
    adjust_learning_rate: Mapping[str, float] | None = None,
) -> LRScheduler:
    """Make the learning rate schedule that a configuration describes.

    Args:
        optimizer: the optimizer whose learning rates are scheduled.
        learning_rate: a number for a constant rate. Or a dictionary: `scheduler` is the name of a class, in
            any case, with or without `LR`; the rest are its arguments, also by older names (`steps` and
            `decay_steps` for `total_iters`, `boundaries` for `milestones`, `values` for `learning_rates`,
            `learning_rate` and `base_lr` for `initial_learning_rate`). Or a list of dictionaries: schedules
            in sequence, each but the last for its `total_iters` steps, or multiplied if one of them has
            `main_scheduler: ChainedLR`.
        adjust_learning_rate: given if the groups have factors, as `configure_param_groups` makes them.

    Raises:
        ScheduleTypeError: the configuration is none of these.
        ScheduleError: a name is unknown, or an argument is missing.
    """
    schedule = _schedule(optimizer, learning_rate)
    return ScalePerParamLR(optimizer, schedule) if adjust_learning_rate else schedule


def configure_scheduler_params(learning_rate: Mapping[str, Any]) -> tuple[type[LRScheduler], dict[str, Any]]:
    """Return the class of the schedule that a dictionary describes, and its arguments by their own names.

    Raises:
        ScheduleTypeError: it is no dictionary with `scheduler`.
        ScheduleError: a name is unknown, or an argument is missing.
    """
    return _class_and_arguments(learning_rate)


def _schedule(optimizer: torch.optim.Optimizer, learning_rate: Any) -> LRScheduler:
    if isinstance(learning_rate, int | float) and learning_rate is not True:
        return ConstantLR(optimizer, float(learning_rate))
    if isinstance(learning_rate, Mapping):
        return _single(optimizer, learning_rate)
    if isinstance(learning_rate, list | tuple) and learning_rate:
        return _several(optimizer, learning_rate)
    raise ScheduleTypeError(
        f"learning_rate is {learning_rate!r}, expected a number, a dictionary with 'scheduler', or a list of "
        "such dictionaries"
    )


def _several(optimizer: torch.optim.Optimizer, entries: Sequence[Mapping[str, Any]]) -> LRScheduler:
    chained = _is_chained(entries)
    schedulers = [_single(optimizer, entry, in_turn=not chained) for entry in entries]
    tags = schedulers[0].param_group_tags
    if chained:
        return ChainedLR(schedulers, param_group_tags=tags)
    milestones = list(accumulate(_length(position, entry) for position, entry in enumerate(entries[:-1])))
    return SequentialLR(optimizer, schedulers, milestones, param_group_tags=tags)


def _is_chained(entries: Sequence[Mapping[str, Any]]) -> bool:
    named = {
        _plain(entry["main_scheduler"]) for entry in map(_check_entry, entries) if "main_scheduler" in entry
    }
    if named - {"chained", "chainedscheduler", "sequential"}:
        raise ScheduleError(
            f"main_scheduler is {', '.join(sorted(named))}, expected ChainedLR or SequentialLR; leave it out "
            "for schedules in sequence"
        )
    return bool(named - {"sequential"})


def _length(position: int, entry: Mapping[str, Any]) -> int:
    for name in ("total_iters", "steps", "decay_steps"):
        if entry.get(name) is not None:
            return int(entry[name])
    raise ScheduleError(
        f"learning_rate[{position}] ({entry['scheduler']}) has no total_iters, expected the steps until the "
        "next schedule begins; give it, or multiply the schedules with main_scheduler: ChainedLR"
    )


def _single(optimizer: torch.optim.Optimizer, entry: Mapping[str, Any], in_turn: bool = False) -> LRScheduler:
    cls, arguments = _class_and_arguments(entry, in_turn)
    return cls(optimizer, **arguments)


def _class_and_arguments(
    entry: Mapping[str, Any], in_turn: bool = False
) -> tuple[type[LRScheduler], dict[str, Any]]:
    cls = _class(_check_entry(entry)["scheduler"])
    accepted = inspect.signature(cls).parameters
    arguments: dict[str, Any] = {}
    for given, value in entry.items():
        name = given if given in accepted else _SCHEDULE_ALIASES.get(given, given)
        if name in arguments:
            raise ScheduleError(f"{cls.__name__}: {name} is given twice, expected once: drop {given}")
        if name in accepted and name != "optimizer":
            arguments[name] = value
        elif given not in ("scheduler", "main_scheduler") and not (in_turn and name == "total_iters"):
            warnings.warn(f"{cls.__name__} has no argument {given!r}: it is ignored", stacklevel=4)
    required = [n for n, p in accepted.items() if p.default is p.empty and n != "optimizer"]
    missing = [name for name in required if name not in arguments]
    if missing:
        raise ScheduleError(
            f"{cls.__name__}: {', '.join(missing)} missing, expected {', '.join(required)}; add them"
        )
    return cls, arguments


def _check_entry(entry: Any) -> Mapping[str, Any]:
    if not isinstance(entry, Mapping) or "scheduler" not in entry:
        raise ScheduleTypeError(f"got {entry!r} as a schedule, expected a dictionary with 'scheduler'")
    return entry


def _class(name: str) -> type[LRScheduler]:
    classes = _classes()
    found = classes.get(_plain(name)) or find_program_class(LRScheduler, name, _plain)
    if found is None:
        known = ", ".join(cls.__name__ for cls in classes.values())
        raise ScheduleError(f"scheduler is {name!r}, expected one of {known}; a list puts several together")
    return found


def _classes() -> dict[str, type[LRScheduler]]:
    """Return the schedules that a dictionary can describe, by plain name."""
    composed = SequentialScheduler, ChainedScheduler, ScalePerParamScheduler
    return {
        _plain(name): cls
        for name, cls in vars(sys.modules[LRScheduler.__module__]).items()
        if isinstance(cls, type) and issubclass(cls, LRScheduler) and cls is not LRScheduler
        if cls is PiecewiseConstantLR or not issubclass(cls, composed)
    }


def _plain(name: str) -> str:
    return str(name).lower().removesuffix("lr")
