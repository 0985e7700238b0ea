"""Prepares optimizers of any kind for steps that are recorded once."""

from __future__ import annotations

import inspect
from functools import cache
from typing import Any

import torch

from cs_runtime.errors import CallError
from cstorch import optim
from cstorch.errors import OptimizerArgumentError
from cstorch.optim.optimizer import GLOBAL_STEP, continue_schedules
from cstorch.tracing.device import DeviceTensor
from cstorch.tracing.state import continue_at, state_steps
from cstorch.v1.session.amp import PENDING
from cstorch.v1.session.environment import state, use_cs
from cstorch.v1.session.optim.lr_scheduler import chain_schedules, count_step, follow_steps, take_schedule

# Optimizers of PyTorch whose steps can be recorded once their state exists.
_OF_TORCH = (
    torch.optim.SGD,
    torch.optim.Adam,
    torch.optim.AdamW,
    torch.optim.Adagrad,
    torch.optim.Adamax,
    torch.optim.NAdam,
    torch.optim.RAdam,
    torch.optim.RMSprop,
    torch.optim.Rprop,
)


def optimizer(given: torch.optim.Optimizer) -> torch.optim.Optimizer:
    """Prepare an optimizer for a session, and return it; its class then is a `cbtorch.optim.Optimizer`.

    The optimizers of `torch.optim` compute as they do in PyTorch. An optimizer of the program must create its
    state in its constructor or in `preinitialize()`.

    Raises:
        CallError: This is no optimizer.
        OptimizerArgumentError: Parameters are not on the device, or the kind of optimizer creates its state
            depending on the first step.
    """
    # The state is created now, because a recorded step does not have tensors that its own first run creates.
    if not isinstance(given, torch.optim.Optimizer):
        raise CallError(f"optimizer() got a {type(given).__name__}, expected a torch.optim.Optimizer")
    if isinstance(given, _Prepared):
        return given
    if use_cs():
        _check_parameters(given)
        _make_state(given)
    given.__class__ = _prepared_class(type(given))  # type: ignore[arg-type] # mypy: no class is hashable
    state().optimizers.append(given)
    return given


class _Prepared:
    """The mixin that `optimizer` adds to the class of an optimizer.

    Attributes:
        gradient_clipper: Function of the program, called with the parameters before they are updated.
        lr_scheduler: Schedule of the program, see `set_main_lr_scheduler`.
    """

    is_prepared = True
    """Steps can be recorded (`cstorch.optim.registry`)."""

    declares_schedules = True
    """Steps advance schedules (`cstorch.v1.session.optim.lr_scheduler`)."""

    @property
    def _optimizer(self) -> _Prepared:
        """This optimizer; the original wraps PyTorch's, which programs pass to schedules."""
        return self

    def set_main_lr_scheduler(self, lr_scheduler: Any) -> None:
        """Keep the schedule of the program, which the program steps itself.

        A `ChainedScheduler` of PyTorch multiplies the schedules of this optimizer.
        """
        self.lr_scheduler = lr_scheduler
        if isinstance(lr_scheduler, torch.optim.lr_scheduler.ChainedScheduler):
            chain_schedules(self)

    def convert_state_dict_for_checkpoint(self, state_dict: Any) -> Any:
        """Return a state dict for `load_state_dict`: unchanged, because it has PyTorch's names."""
        return state_dict

    def _clip(self) -> None:
        clip = vars(self).get("gradient_clipper")
        if clip is not None:
            clip([p for group in self.param_groups for p in group["params"]])  # type: ignore[attr-defined]

    def step(self, closure: Any = None) -> Any:
        """Clip the gradients and update the parameters; gradients of a scaled loss go through its scaler."""
        scaler = vars(self).pop(PENDING, None)
        schedule = take_schedule(self)
        if isinstance(self, torch.optim.Adagrad):  # counts on this CPU, for lr_decay only
            for state in self.state.values():
                state["step"] = torch.zeros(())
        step: Any = super().step  # type: ignore[misc]
        returned = None
        if scaler is None:
            self._clip()
            returned = step(closure) if closure is not None else step()
        else:
            scaler.step(self)  # it calls this method again
            scaler.update()
        count_step(self, schedule)
        return returned

    def state_dict(self) -> dict[str, Any]:
        """Return the state dict of the optimizer, with the number of steps as `global_step`."""
        return {**super().state_dict(), GLOBAL_STEP: state_steps()}  # type: ignore[misc]

    def load_state_dict(self, state_dict: Any) -> None:
        """Resume from a saved optimizer, with its schedules, its position in the input and dropout masks."""
        groups: list[dict[str, Any]] = self.param_groups  # type: ignore[attr-defined]
        tensors = [{name: x for name, x in group.items() if isinstance(x, torch.Tensor)} for group in groups]
        super().load_state_dict(state_dict)  # type: ignore[misc]
        for group, kept in zip(self.param_groups, tensors, strict=True):  # type: ignore[attr-defined]
            for name, tensor in kept.items():  # schedules write into these, so they stay
                group[name] = tensor.copy_(torch.as_tensor(group[name]))
        if GLOBAL_STEP in state_dict:
            continue_at(int(state_dict[GLOBAL_STEP]))
            continue_schedules(self, int(state_dict[GLOBAL_STEP]))
        rates = [group.get("lr") for group in state_dict["param_groups"]]
        follow_steps(self, rates if all(isinstance(x, torch.Tensor) for x in rates) else None)


@cache
def _prepared_class(kind: type) -> type:
    """Return the class of an optimizer with the mixin; the same one for every optimizer of a class."""
    prepared = type(kind.__name__, (_Prepared, kind), {"__module__": kind.__module__})
    if not issubclass(kind, optim.Optimizer):
        optim.Optimizer.register(prepared)
    return prepared


def _check_parameters(given: torch.optim.Optimizer) -> None:
    parameters = [p for group in given.param_groups for p in group["params"]]
    if not all(isinstance(p, DeviceTensor) for p in parameters):
        raise OptimizerArgumentError(
            f"{type(given).__name__} has parameters of this CPU, expected those of a model that was passed "
            "to cbtorch.module() before: create the optimizer after that"
        )


def _make_state(given: torch.optim.Optimizer) -> None:
    """Create the state of an optimizer before its first step."""
    if type(given) is torch.optim.Adagrad and any(group["lr_decay"] for group in given.param_groups):
        raise OptimizerArgumentError(
            "torch.optim.Adagrad with lr_decay counts its steps in Python, expected lr_decay=0: use "
            "cbtorch.optim.Adagrad, which counts them on the system"
        )
    if given.state or isinstance(given, optim.Optimizer):
        return
    if hasattr(given, "preinitialize"):
        given.preinitialize()
    elif type(given).__module__.startswith("torch.optim."):
        _make_state_of_torch(given)


def _make_state_of_torch(given: torch.optim.Optimizer) -> None:
    """Create the state as the first step of `torch.optim`'s optimizers does, on the device."""
    if type(given) not in _OF_TORCH:
        found = optim.replacement(type(given))
        cure = "choose one of cbtorch.optim" if found is None else f"make cbtorch.optim.{found.__name__}"
        raise OptimizerArgumentError(
            f"torch.optim.{type(given).__name__} decides in Python while it steps, expected "
            f"{', '.join(kind.__name__ for kind in _OF_TORCH)} or an optimizer of cbtorch.optim; {cure}"
        )
    lists = len(inspect.signature(given._init_group).parameters) - 1
    for group in given.param_groups:
        group["foreach"] = False
        if "capturable" in group:
            group["capturable"] = True
        with torch.no_grad():
            for parameter in group["params"]:
                parameter.grad = torch.zeros_like(parameter)
            if isinstance(given, torch.optim.SGD):
                _make_momentum(given, group)
            given._init_group(group, *([] for _ in range(lists)))
            for parameter in group["params"]:
                parameter.grad = None


def _make_momentum(given: torch.optim.SGD, group: dict[str, Any]) -> None:
    """Start the momentum at 0, which without dampening equals PyTorch's start with the first gradient."""
    if not group["momentum"]:
        return
    if group["dampening"]:
        raise OptimizerArgumentError(
            f"torch.optim.SGD with dampening={group['dampening']} does something else in its first step, "
            "expected 0: use cbtorch.optim.SGD, which damps from the first step on"
        )
    for parameter in group["params"]:
        given.state[parameter]["momentum_buffer"] = torch.zeros_like(parameter)
