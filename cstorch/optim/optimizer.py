"""The base class of optimizers: a `torch.optim.Optimizer` whose step is recorded once."""

# Without `from __future__ import annotations`: Model Zoo builds its configuration classes from the types of
# constructor arguments, and cannot resolve strings.

import math
from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from inspect import unwrap
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.optimizer import ParamsT as ParamsT
from torch.utils.hooks import RemovableHandle

from cs_toolkit.step import OPTIMIZER_STATE
from cstorch.errors import OptimizerArgumentError, OptimizerStateError
from cstorch.tracing.state import continue_at, register, state_steps

STEP = "step"
"""Name of the state that counts the steps of one parameter."""

GLOBAL_STEP = "global_step"
"""Key of a saved state: the number of steps after which it was saved."""
SCHEDULES = "_schedules"
"""Attribute of an optimizer: weak references to its schedules, those within others first."""

# Without the wrappers that keep `torch.compile` out: they import Dynamo, a second at the start of a program.
_add_param_group = unwrap(torch.optim.Optimizer.add_param_group)
_state_dict = unwrap(torch.optim.Optimizer.state_dict)
_zero_grad = unwrap(torch.optim.Optimizer.zero_grad)

Closure = Callable[[], Tensor]
Hook = Callable[["Optimizer", tuple[Any, ...], dict[str, Any]], None]


class Optimizer(torch.optim.Optimizer, ABC):
    """Base class of the optimizers that a traced step can use.

    `preinitialize` creates all state that a step changes, as tensors on the devices of their parameters;
    steps write it in place. A step has no Python condition on the value of a tensor. `lr` and the other
    entries of a group are numbers, which are constants of a traced step, or scalar tensors.

    Args:
        params: tensors, or groups of them with their own entries, as for `torch.optim.Optimizer`.
        defaults: entries of groups that do not have them.
        enable_global_step: every parameter gets the state `step`, a float32 scalar that
            `increment_global_step` increments.
    """

    def __init__(
        self,
        params: ParamsT,
        defaults: Mapping[str, Any],
        enable_global_step: bool = False,
    ) -> None:
        super().__init__(params, dict(defaults))
        self.enable_global_step = enable_global_step
        self._forget_hooks()
        self.preinitialize()
        for group in self.param_groups:
            self._count_steps(group)
        register(OPTIMIZER_STATE, self)

    @abstractmethod
    def preinitialize(self) -> None:
        """Make the state of all parameters."""

    @abstractmethod
    def step(self, closure: Closure | None = None) -> Tensor | None:
        """Update the parameters that have gradients, and return the result of the closure."""

    @abstractmethod
    def state_names_to_sparsify(self) -> list[str]:
        """Return the names of the states that have the shape of their parameter."""

    def increment_global_step(self, p: Tensor) -> Tensor:
        """Count a step of a parameter, and return the number of its steps, this one included.

        Raises:
            OptimizerStateError: the optimizer was made without `enable_global_step`.
        """
        if not self.enable_global_step:
            raise OptimizerStateError(
                f"{type(self).__name__} does not count steps; pass enable_global_step=True to its base class"
            )
        count: Tensor = self.state[p][STEP]
        return count.add_(1)

    def _count_steps(self, group: Mapping[str, Any]) -> None:
        if self.enable_global_step:
            for parameter in group["params"]:
                self.state[parameter].setdefault(STEP, scalar(parameter, 0))

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a parameter group."""
        _add_param_group(self, param_group)

    def named_state(self) -> Iterator[tuple[str, Tensor]]:
        """Yield all tensors that a step may change, by name.

        Yields:
            `state.<i>.<name>` for the state of parameter i, as `state_dict` counts them, and
            `param_groups.<g>.<name>` for the entries of groups that are tensors, such as `lr`.
        """
        parameters = [p for group in self.param_groups for p in group["params"]]
        stores = [(f"state.{i}", self.state.get(p, {})) for i, p in enumerate(parameters)]
        stores += [(f"param_groups.{g}", group) for g, group in enumerate(self.param_groups)]
        for store, entries in stores:
            for name, value in entries.items():
                if isinstance(value, torch.Tensor):
                    yield f"{store}.{name}", value

    def visit_state(self, fn: Callable[[Tensor], Tensor | None]) -> None:
        """Call a function on every tensor of the state; a tensor that it returns replaces it."""
        for state in self.state.values():
            for name, value in state.items():
                if isinstance(value, torch.Tensor):
                    replaced = fn(value)
                    if replaced is not None:
                        state[name] = replaced

    def apply(self, f: Callable[["Optimizer"], object]) -> "Optimizer":
        """Call a function on the optimizer, as `nn.Module.apply` on a module, and return the optimizer."""
        f(self)
        return self

    def register_zero_grad_pre_hook(self, hook: Hook) -> RemovableHandle:
        """Register a hook that is called with the optimizer and the arguments before each `zero_grad`."""
        return _register_hook(self._before_zero_grad, hook)

    def register_zero_grad_post_hook(self, hook: Hook) -> RemovableHandle:
        """Register a hook that is called with the optimizer and the arguments after each `zero_grad`."""
        return _register_hook(self._after_zero_grad, hook)

    def zero_grad(self, *args: Any, **kwargs: Any) -> None:
        """Clear the gradients of all parameters."""
        for hook in tuple(self._before_zero_grad.values()):
            hook(self, args, kwargs)
        _zero_grad(self, *args, **kwargs)
        for hook in tuple(self._after_zero_grad.values()):
            hook(self, args, kwargs)

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "enable_global_step": self.enable_global_step}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self._forget_hooks()

    def _forget_hooks(self) -> None:
        # A copy has no hooks, as in PyTorch.
        self._before_zero_grad: OrderedDict[int, Hook] = OrderedDict()
        self._after_zero_grad: OrderedDict[int, Hook] = OrderedDict()

    def state_dict(self) -> dict[str, Any]:
        """Return state and groups, and under `global_step` the number of steps of this process.

        A process that loads them continues from there: dropout masks and the input depend on the number.
        """
        return {**_state_dict(self), GLOBAL_STEP: state_steps()}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Copy a saved state into the tensors of this one, in place.

        If it contains the number of steps, this process continues from there.

        Raises:
            OptimizerStateError: the saved groups or states are not those of this optimizer.
        """
        groups = list(state_dict["param_groups"])
        sizes = [len(group["params"]) for group in self.param_groups]
        if [len(group["params"]) for group in groups] != sizes:
            raise OptimizerStateError(
                f"the saved groups have {[len(g['params']) for g in groups]} parameters, expected {sizes}; "
                "load them into an optimizer that is made with the same groups"
            )
        saved = {int(index): state for index, state in state_dict["state"].items()}
        pairs = [
            (self.state.get(parameter, {}), saved.get(index, {}), index)
            for group, other in zip(self.param_groups, groups, strict=True)
            for parameter, index in zip(group["params"], other["params"], strict=True)
        ]
        for state, values, index in pairs:
            _check_names(type(self).__name__, index, state, values)
        with torch.no_grad():
            for state, values, _ in pairs:
                for name, value in values.items():
                    _write(state, name, value)
            for group, other in zip(self.param_groups, groups, strict=True):
                for name in other.keys() - {"params"}:
                    _write(group, name, other[name])
        if GLOBAL_STEP in state_dict:
            continue_at(int(state_dict[GLOBAL_STEP]))
            continue_schedules(self, int(state_dict[GLOBAL_STEP]))


def continue_schedules(optimizer: torch.optim.Optimizer, step: int) -> None:
    """Continue the schedules of an optimizer after a step."""
    # A schedule whose state is loaded afterwards uses that. Programs up to release 1.8 save none: there the
    # system counts the steps of the optimizer.
    for known in vars(optimizer).get(SCHEDULES, ()):
        schedule = known()
        if schedule is not None:
            schedule.follow(step)


class PerParameter(Optimizer):
    """An optimizer that updates each parameter by itself, with one rule."""

    @abstractmethod
    def _initial(self, parameter: nn.Parameter, group: Mapping[str, Any]) -> dict[str, Tensor]:
        """Return the state of a parameter before its first step, without the count of its steps."""

    @abstractmethod
    def _update(
        self, parameter: nn.Parameter, gradient: Tensor, state: dict[str, Tensor], group: Mapping[str, Any]
    ) -> None:
        """Update a parameter and its state in place."""

    def preinitialize(self) -> None:
        """Make the state of all parameters."""
        for group in self.param_groups:
            self._start(group)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a parameter group, and make its state."""
        super().add_param_group(param_group)
        if hasattr(self, "enable_global_step"):  # groups of the constructor get their state at its end
            self._start(self.param_groups[-1])
            self._count_steps(self.param_groups[-1])

    def _start(self, group: Mapping[str, Any]) -> None:
        with torch.no_grad():
            for parameter in group["params"]:
                self.state[parameter].update(self._initial(parameter, group))

    def step(self, closure: Closure | None = None) -> Tensor | None:
        """Update the parameters that have gradients.

        Args:
            closure: computes the loss and its gradients.

        Returns:
            The result of the closure.
        """
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        with torch.no_grad():
            for group in self.param_groups:
                for parameter in group["params"]:
                    if parameter.grad is not None:
                        state = {name: _in_reals(value) for name, value in self.state[parameter].items()}
                        self._update(_in_reals(parameter), _in_reals(parameter.grad), state, group)
        return loss


def _in_reals(value: Any) -> Any:
    """View complex numbers as pairs of real ones, in the same memory: rules update each part by itself."""
    return torch.view_as_real(value) if isinstance(value, torch.Tensor) and value.is_complex() else value


def scalar(like: Tensor, value: float) -> Tensor:
    """Return a float32 scalar on the device of a tensor."""
    return like.new_full((), value, dtype=torch.float32)


def is_off(value: float | Tensor | None) -> bool:
    """Return True if an entry of a group is zero or None, so that its term is left out; a tensor never is."""
    return not isinstance(value, torch.Tensor) and not value


def add_weight_decay(gradient: Tensor, parameter: Tensor, rate: float | Tensor) -> Tensor:
    """Return a gradient plus that of `rate / 2 * |parameter|^2`."""
    return gradient if is_off(rate) else gradient + rate * parameter


def apply_maximize(gradient: Tensor, group: Mapping[str, Any]) -> Tensor:
    """Return a gradient, negated if the group has `maximize`."""
    return -gradient if group["maximize"] else gradient


def update_average(average: Tensor, value: Tensor, rate: float) -> Tensor:
    """Compute `average = rate * average + (1 - rate) * value` in place."""
    return average.mul_(rate).add_(value, alpha=1 - rate)


def update_average_square(average: Tensor, value: Tensor, rate: float) -> Tensor:
    """Compute `average = rate * average + (1 - rate) * value^2` in place."""
    return average.mul_(rate).addcmul_(value, value, value=1 - rate)


def bias_correction(rate: float, step: Tensor) -> Tensor:
    """Return `1 - rate^step`, accurate even if the power is close to 1."""
    return -torch.expm1(step * (math.log(rate) if rate else -math.inf))


def _register_hook(hooks: OrderedDict[int, Hook], hook: Hook) -> RemovableHandle:
    handle = RemovableHandle(hooks)
    hooks[handle.id] = hook
    return handle


def _check_names(optimizer: str, index: int, state: Mapping[str, Any], saved: Mapping[str, Any]) -> None:
    if state.keys() != saved.keys():
        raise OptimizerStateError(
            f"parameter {index} has the saved states {sorted(saved)}, expected {sorted(state)}; "
            f"load a state that {optimizer} saved with the same arguments"
        )
    for name, value in state.items():
        if isinstance(value, torch.Tensor) and tuple(value.shape) != tuple(
            torch.as_tensor(saved[name]).shape
        ):
            raise OptimizerStateError(
                f"the saved {name} of parameter {index} has the shape "
                f"{tuple(torch.as_tensor(saved[name]).shape)}, expected {tuple(value.shape)}"
            )


def _write(target: dict[str, Any], name: str, value: Any) -> None:
    """Set an entry of a state."""
    # A recorded step refers to the tensor, so it has to stay the same one.
    kept = target.get(name)
    if isinstance(kept, torch.Tensor) and value is not None:
        kept.copy_(torch.as_tensor(value))
    else:
        target[name] = value.clone() if isinstance(value, torch.Tensor) else value


def check_not_negative(optimizer: object, **given: float | Tensor) -> None:
    """Raise an error for negative, infinite and undefined numbers; tensors are not read.

    Raises:
        OptimizerArgumentError: names the argument and its value.
    """
    for name, value in given.items():
        if isinstance(value, str):
            raise argument_error(
                optimizer, name, repr(value), "a number; YAML 1.1 reads 1e-4 as text, and 1.0e-4 as a number"
            )
        if not isinstance(value, torch.Tensor) and not 0 <= value < math.inf:
            raise argument_error(optimizer, name, value, "a finite number of at least 0")


def check_betas(optimizer: object, name: str, given: Sequence[float]) -> None:
    """Raise an error for decay rates outside of [0, 1).

    Raises:
        OptimizerArgumentError: names the argument and its value.
    """
    for position, value in enumerate(given):
        if not 0 <= value < 1:
            raise argument_error(optimizer, f"{name}[{position}]", value, "a number from 0 to below 1")


def argument_error(optimizer: object, name: str, value: object, expected: str) -> OptimizerArgumentError:
    """Return the error for an argument that cannot be used."""
    return OptimizerArgumentError(f"{type(optimizer).__name__} got {name} = {value}, expected {expected}")
