"""Optimizers by name, out of dictionaries; and what takes the place of PyTorch's own."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import nn

from cs_toolkit.subclasses import find_program_class
from cstorch.errors import OptimizerArgumentError
from cstorch.optim.adam import Adam, Adamax, AdamW, Lamb, NAdam, RAdam
from cstorch.optim.muon import Muon
from cstorch.optim.optimizer import Optimizer
from cstorch.optim.squares import Adadelta, Adafactor, Adagrad, RMSprop
from cstorch.optim.steps import ASGD, SGD, Lion, Rprop

log = logging.getLogger("cstorch")

OPTIMIZERS: dict[str, type[Optimizer]] = {
    made.__name__.lower(): made
    for made in (
        SGD,
        Adam,
        AdamW,
        Adamax,
        Adagrad,
        Adadelta,
        Adafactor,
        ASGD,
        Lamb,
        Lion,
        Muon,
        NAdam,
        RAdam,
        RMSprop,
        Rprop,
    )
}
"""All optimizers by name in small letters."""

_ALIASES = {"learning_rate": "lr", "weight_decay_rate": "weight_decay"}


def replacement(optimizer: type[torch.optim.Optimizer]) -> type[Optimizer] | None:
    """The optimizer that takes the place of one of `torch.optim`; None where there is none.

    `eps` is 1e-6 by default in most of them, where PyTorch has 1e-8.
    """
    for ancestor in optimizer.__mro__:
        if ancestor.__module__.startswith("torch.optim"):
            return OPTIMIZERS.get(ancestor.__name__.lower())
    return None


def configure_optimizer(optimizer_type: str, params: Iterable[Any], **kwargs: Any) -> Optimizer:
    """Makes an optimizer by its name.

    Args:
        optimizer_type: name of a class, in small or capital letters; also one that the program defines.
        params: parameters, or groups of them.
        kwargs: arguments of the class, also by the names `learning_rate`, `weight_decay_rate`, and `beta1`
            with `beta2`. What the class does not take is left out: programs pass all that their
            configuration says of the optimizer, of which schedules and loss scales are others' business.

    Raises:
        OptimizerArgumentError: there is no such optimizer, or an argument is given by two names.
    """
    made, given = configure_optimizer_params(optimizer_type, kwargs)
    return made(params, **given)


def configure_optimizer_params(
    optimizer_type: str, kwargs: dict[str, Any]
) -> tuple[type[Optimizer], dict[str, Any]]:
    """Return the class of an optimizer, and those of some arguments that it takes, by its own names.

    Args and errors are those of `configure_optimizer`.
    """
    made = OPTIMIZERS.get(optimizer_type.lower()) or find_program_class(Optimizer, optimizer_type)
    if made is None:
        names = ", ".join(sorted(known.__name__ for known in OPTIMIZERS.values()))
        raise OptimizerArgumentError(f"optimizer_type is {optimizer_type!r}, expected one of {names}")
    given = _by_own_names(made, kwargs)
    taken = inspect.signature(made).parameters.keys() - {"params"}
    unused = sorted(given.keys() - taken)
    if unused:
        log.debug("%s takes no %s", made.__name__, ", ".join(unused))
    return made, {name: value for name, value in given.items() if name in taken}


def _by_own_names(made: type[Optimizer], given: dict[str, Any]) -> dict[str, Any]:
    renamed = dict(given)
    for alias, name in _ALIASES.items():
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
    """The parameters of a model in two groups: with the weight decay that is given, and without.

    Args:
        model: its parameters that have gradients.
        optimizer_params: says `weight_decay` or `weight_decay_rate`; without it no parameter decays. With
            `adjust_learning_rate`, factors by kind of layer, `embedding` or `decoder_kernel` (weights of
            linear layers), each group is split by its factor, which is its entry of that name.
        no_decay: whether a parameter of a name does not decay; biases and the parameters of normalization
            layers do not where it is left out.

    Returns:
        Groups for an optimizer; one that would be empty is left out.
    """
    rate = optimizer_params.get("weight_decay", optimizer_params.get("weight_decay_rate", 0.0))
    groups: tuple[list[nn.Parameter], list[nn.Parameter]] = [], []
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            exempt = no_decay(name, parameter) if no_decay else _is_bias_or_norm(model, name)
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


_KINDS: dict[str, Callable[[str], bool]] = {
    "decoder_kernel": lambda name: "weight" in name and ("linear" in name or "dense" in name),
    "embedding": lambda name: "weight" in name and "embedding" in name,
}
"""Kinds of layers that have factors of their own, by the names of their parameters."""


def _is_bias_or_norm(model: nn.Module, name: str) -> bool:
    module, _, own = name.rpartition(".")
    return own.endswith("bias") or "Norm" in type(model.get_submodule(module)).__name__
