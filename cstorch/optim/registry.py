"""The optimizers by name, and checks that a recorded step can use an optimizer."""

from __future__ import annotations

from typing import Any

import torch
from torch.optim.optimizer import register_optimizer_step_pre_hook

from cstorch.errors import OptimizerInStepError
from cstorch.optim.adam import Adam, Adamax, AdamW, Lamb, NAdam, RAdam
from cstorch.optim.adaptive import Adadelta, Adafactor, Adagrad, RMSprop
from cstorch.optim.optimizer import Optimizer
from cstorch.optim.sgd import ASGD, SGD, Lion, Muon, Rprop
from cstorch.tracing.device import DeviceTensor
from cstorch.tracing.places import user_line
from cstorch.tracing.recorder import current_recording

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


def replacement(optimizer: type[torch.optim.Optimizer]) -> type[Optimizer] | None:
    """Return the optimizer that replaces one of `torch.optim`; None if there is none.

    The default of `eps` is 1e-6 in most of them, and 1e-8 in PyTorch.
    """
    for ancestor in optimizer.__mro__:
        if ancestor.__module__.startswith("torch.optim"):
            return OPTIMIZERS.get(ancestor.__name__.lower())
    return None


def check_optimizer(optimizer: Any) -> None:
    """Raise an error for an optimizer of `torch.optim` with a compiled model, unless a session prepared it.

    Raises:
        OptimizerInStepError: the optimizer is one of these.
    """
    if getattr(optimizer, "is_prepared", False):
        return
    kind = type(optimizer)
    of_torch = kind.__module__.startswith("torch.optim")
    if of_torch and any(isinstance(p, DeviceTensor) for p in _parameters(optimizer)):
        found = replacement(kind)
        cure = (
            f"make cstorch.optim.{found.__name__} with the same arguments; its eps has another default"
            if found
            else "choose one of cstorch.optim, or derive one from cstorch.optim.Optimizer"
        )
        raise OptimizerInStepError(
            f"torch.optim.{kind.__name__} cannot be in a recorded step: it creates state in its step and "
            f"counts steps in Python; {cure}",
            user_line(),
        )


def _before_step(optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
    """Check the optimizer of a recorded step, and keep the numbers of its groups as constants."""
    recording = current_recording()
    # Sessions prepare optimizers of any kind, and update schedules themselves.
    if recording is None or getattr(optimizer, "is_prepared", False):
        return
    check_optimizer(optimizer)
    if not all(isinstance(p, DeviceTensor) for p in _parameters(optimizer)):
        raise OptimizerInStepError(
            f"{type(optimizer).__name__} has parameters of this CPU, so the step would train nothing: it was "
            "made before cstorch.compile, or for another model; make it after compile, from the parameters "
            "of the compiled model",
            user_line(),
        )
    if hasattr(optimizer.step, "_wrapped_by_lr_sched"):  # set by torch's schedulers on their optimizers
        raise OptimizerInStepError(
            f"{type(optimizer).__name__} has a schedule of torch.optim.lr_scheduler, whose Python numbers "
            "would keep their first value in a recorded step; take the schedule of that name from "
            "cstorch.optim.lr_scheduler, and call its step() inside the step",
            user_line(),
        )
    recording.numbers.extend(
        (group, name, value)
        for group in optimizer.param_groups
        for name, value in group.items()
        if isinstance(value, int | float)
    )


def _parameters(optimizer: Any) -> list[torch.Tensor]:
    return [p for group in optimizer.param_groups for p in group["params"]]


register_optimizer_step_pre_hook(_before_step)
