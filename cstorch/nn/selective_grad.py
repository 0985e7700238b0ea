"""Gradients and updates of chosen elements of parameters."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch import nn
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from cstorch.utils.filters import FilterCallable, make_param_filter

_HOOKED = "_cstorch_selective_grad"
"""Attribute of parameters whose gradients have a mask."""

Mask = Callable[[torch.Tensor], torch.Tensor]


def _outliers(parameter: torch.Tensor) -> torch.Tensor:
    """Return True for elements that are more than 3 standard deviations from the mean."""
    return (parameter - parameter.mean()).abs() > 3 * parameter.std()


class SelectiveGrad:
    """Lets only chosen elements of parameters take part in training: `model.apply(SelectiveGrad("fc.*"))`.

    The others have no gradient and keep their values in the updates of all optimizers.

    Args:
        param_filter: Names of parameters with wildcards, or a function of name and parameter.
        init_method: "outlier", elements more than 3 standard deviations from the mean of their parameter, or
            a function that returns the mask of a parameter.

    Raises:
        ValueError: `init_method` is neither.
    """

    def __init__(
        self, param_filter: str | list[str] | FilterCallable, init_method: str | Mask = "outlier"
    ) -> None:
        if init_method != "outlier" and not callable(init_method):
            raise ValueError(f"init_method is {init_method!r}, expected 'outlier' or a function of a tensor")
        self.param_filter = make_param_filter(param_filter)
        self.init_method = init_method
        self._masks: dict[tuple[int, str], tuple[nn.Module, torch.Tensor]] = {}
        self._before: dict[int, torch.Tensor] = {}

    def __call__(self, obj: nn.Module) -> None:
        """See `apply`; for `nn.Module.apply`, which calls it for each module, the whole model last."""
        self.apply(obj)

    def apply(self, obj: nn.Module) -> None:
        """Choose the elements of a module's parameters, by their present values."""
        choose: Mask = self.init_method if callable(self.init_method) else _outliers
        first = not self._masks
        for prefix, module in obj.named_modules():
            for name, parameter in module.named_parameters(recurse=False):
                path = f"{prefix}.{name}".strip(".")
                if (id(module), name) in self._masks or not self.param_filter(path, parameter):
                    continue
                mask = choose(parameter.detach()).to(parameter.dtype)
                self._masks[id(module), name] = module, mask
                module.register_forward_pre_hook(self._mask_gradients)
        if self._masks and first:
            register_optimizer_step_pre_hook(self._keep)
            register_optimizer_step_post_hook(self._put_back)

    def _mask_gradients(self, module: nn.Module, args: Any) -> None:
        """Hook the gradients of a module's parameters; `cstorch.compile` makes new ones of them."""
        for parameter, mask in self._chosen(module.parameters(recurse=False)):
            if getattr(parameter, _HOOKED, None) is not mask:
                setattr(parameter, _HOOKED, mask)
                parameter.register_hook(lambda gradient, mask=mask: gradient * mask)

    def _keep(self, optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        for parameter, _ in self._chosen(_parameters(optimizer)):
            self._before[id(parameter)] = parameter.detach().clone()

    def _put_back(self, optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        with torch.no_grad():
            for parameter, mask in self._chosen(_parameters(optimizer)):
                before = self._before.pop(id(parameter))
                parameter.copy_(torch.where(mask > 0, parameter, before))

    def _chosen(self, parameters: Iterable[nn.Parameter]) -> list[tuple[nn.Parameter, torch.Tensor]]:
        """Those of the parameters that have a mask, with it."""
        wanted = {id(parameter) for parameter in parameters}
        found = ((module._parameters[name], mask) for (_, name), (module, mask) in self._masks.items())
        return [(p, mask) for p, mask in found if p is not None and id(p) in wanted]


def _parameters(optimizer: torch.optim.Optimizer) -> Iterator[nn.Parameter]:
    return (parameter for group in optimizer.param_groups for parameter in group["params"])
