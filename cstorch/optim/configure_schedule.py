"""Makes a learning rate schedule of what a configuration file says."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import Any

import torch

from cs_toolkit.subclasses import find_program_class
from cstorch.errors import ScheduleError, ScheduleTypeError
from cstorch.optim import lr_scheduler
from cstorch.optim.composed_schedules import ChainedScheduler, ScalePerParamScheduler, SequentialScheduler
from cstorch.optim.lr_scheduler import (
    ChainedLR,
    ConstantLR,
    LRScheduler,
    PiecewiseConstantLR,
    ScalePerParamLR,
    SequentialLR,
)

_ALIASES = {
    "steps": "total_iters",
    "decay_steps": "total_iters",
    "learning_rate": "initial_learning_rate",
    "base_lr": "initial_learning_rate",
    "values": "learning_rates",
    "boundaries": "milestones",
}


def configure_lr_scheduler(
    optimizer: torch.optim.Optimizer,
    learning_rate: float | Mapping[str, Any] | Sequence[Mapping[str, Any]],
    adjust_learning_rate: Mapping[str, float] | None = None,
) -> LRScheduler:
    """The schedule that a configuration describes.

    Args:
        optimizer: whose learning rates are scheduled.
        learning_rate: a number for a rate that stays. The vendor's package makes no schedule of it, the
            document of the interface says `ConstantLR`, and so it is here. Or a dictionary: `scheduler` is
            the name of a class, in any case, with or without `LR`; the rest are its arguments, also by
            older names (`steps` and `decay_steps` for `total_iters`, `boundaries` for `milestones`, `values`
            for `learning_rates`, `learning_rate` and `base_lr` for `initial_learning_rate`). Or a list of
            dictionaries: one schedule after the other, each but the last for its `total_iters` steps, or
            multiplied where one of them has `main_scheduler: ChainedLR`.
        adjust_learning_rate: given where the groups have factors; see `configure_param_groups`.

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
    named = {_plain(entry["main_scheduler"]) for entry in map(_checked, entries) if "main_scheduler" in entry}
    if named - {"chained", "chainedscheduler", "sequential"}:
        raise ScheduleError(
            f"main_scheduler is {', '.join(sorted(named))}, expected ChainedLR or SequentialLR; leave it out "
            "for schedules one after the other"
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
    cls = _class(_checked(entry)["scheduler"])
    accepted = inspect.signature(cls).parameters
    arguments: dict[str, Any] = {}
    for given, value in entry.items():
        name = given if given in accepted else _ALIASES.get(given, given)
        if name in arguments:
            raise ScheduleError(f"{cls.__name__}: {name} is given twice, expected once: drop {given}")
        if name in accepted and name != "optimizer":
            arguments[name] = value
        elif given not in ("scheduler", "main_scheduler") and not (in_turn and name == "total_iters"):
            warnings.warn(f"{cls.__name__} has no argument {given!r}: it is not used", stacklevel=4)
    required = [n for n, p in accepted.items() if p.default is p.empty and n != "optimizer"]
    missing = [name for name in required if name not in arguments]
    if missing:
        raise ScheduleError(
            f"{cls.__name__}: {', '.join(missing)} missing, expected {', '.join(required)}; add them"
        )
    return cls, arguments


def _checked(entry: Any) -> Mapping[str, Any]:
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
    """The schedules that arguments alone describe, by plain name."""
    composed = SequentialScheduler, ChainedScheduler, ScalePerParamScheduler
    return {
        _plain(name): cls
        for name, cls in vars(lr_scheduler).items()
        if isinstance(cls, type) and issubclass(cls, LRScheduler) and cls is not LRScheduler
        if cls is PiecewiseConstantLR or not issubclass(cls, composed)
    }


def _plain(name: str) -> str:
    return str(name).lower().removesuffix("lr")
