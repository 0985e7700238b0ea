"""The base class of sparsity algorithms, sparse weights with their masks, and `Static`, which keeps masks.

The mask of a weight is a buffer of its module, `<weight>_mask`, so checkpoints of the model contain it. The
weight itself is 0 where its mask is: a hook makes its gradient sparse, and after each step of the optimizer
the weight and the optimizer's state are pruned. So a program that uses a weight outside of its module's
`forward` sees a sparse one, too.
"""

# Without `from __future__ import annotations`: Model Zoo builds its configuration classes from the types of
# constructor arguments, and cannot resolve strings.

import sys
from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from fnmatch import fnmatchcase
from types import FrameType
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from cstorch.sparse.utils import HyperParameterSchedule, InitMethod, configure_hyperparameter, init_method_of

ParamFilter: TypeAlias = str | Sequence[str] | Callable[[str, Tensor], bool] | None
"""A glob pattern of paths, several patterns, or a function of path and tensor; None for the default."""

_DENSE = ("embedding", "norm", "lm_head", "pe_helper")
"""Parts of paths of weights that stay dense: small ones, and tables from which a step reads a few rows."""


def default_sparse_param_filter(name: str, param: Tensor) -> bool:
    """Return True for weights with two dimensions or more that are no embedding, norm or output head."""
    return param.dim() > 1 and not any(part in name.lower() for part in _DENSE)


def filter_of(given: ParamFilter) -> Callable[[str, Tensor], bool]:
    """Convert a filter to a function of path and weight.

    Raises:
        ValueError: it is none.
    """
    if given is None:
        return default_sparse_param_filter
    if callable(given):
        return given
    patterns = [given] if isinstance(given, str) else given
    if isinstance(patterns, Sequence) and all(isinstance(pattern, str) for pattern in patterns):
        return lambda name, param: any(fnmatchcase(name, pattern) for pattern in patterns)
    raise ValueError(
        f"got param_filter={given!r}, expected a pattern such as '*dense_layer.weight', a list of patterns, "
        "or a function of name and parameter"
    )


SparsityHook: TypeAlias = Callable[["SparsityAlgorithm", str, Tensor | float], Any]
"""Called with the algorithm, the name of a weight and its sparsity."""


class SparseParameter:
    """A weight of a module with its mask.

    Attributes:
        module: the module of the weight and the mask.
        name: path of the weight in the model.
        dense_grad: unmasked gradient of the weight in this step; None before the backward pass.
    """

    def __init__(self, module: nn.Module, name: str) -> None:
        self.module, self.name = module, name
        self._key = name.rpartition(".")[2]
        self.dense_grad: Tensor | None = None
        self._run_step_hooks: Tensor | None = None
        full = torch.ones_like(self.param, dtype=torch.bool, requires_grad=False)
        module.register_buffer(self.mask_key, full)
        module.register_forward_pre_hook(lambda *_: self.hook_gradient())
        module.register_load_state_dict_post_hook(lambda *_: self.prune())
        self.hook_gradient()

    @property
    def mask_key(self) -> str:
        """Name of the mask in its module."""
        return f"{self._key}_mask"

    @property
    def param(self) -> nn.Parameter:
        """The weight; `cstorch.compile` replaces it by a tensor of the device."""
        found = self.module._parameters[self._key]
        assert found is not None
        return found

    @property
    def mask(self) -> Tensor:
        """A bool tensor of the weight's shape; False where the weight is pruned."""
        return self.module.get_buffer(self.mask_key)

    def hook_gradient(self) -> None:
        """Make gradients of the weight sparse, once for each tensor that has been the weight."""
        parameter = self.param
        if self._run_step_hooks is not parameter and parameter.requires_grad:
            parameter.register_hook(self._sparsify_gradient)
            self._run_step_hooks = parameter

    @torch.no_grad()  # type: ignore[untyped-decorator]
    def prune(self, others: Iterable[Tensor] = ()) -> None:
        """Set elements outside of the mask to 0, in the weight and in other tensors of its shape."""
        mask = self.mask
        for tensor in (self.param, *others):
            tensor.mul_(mask.to(tensor.dtype))

    def _sparsify_gradient(self, grad: Tensor) -> Tensor:
        self.dense_grad = grad.detach()
        return grad * self.mask.to(grad.dtype)


class SparsityAlgorithm(ABC):
    """Makes weights of a model sparse, and keeps them sparse during training.

    `model.apply(algorithm)` chooses weights and makes their masks; `optimizer.apply(algorithm)` makes each
    step of the optimizer prune them, and update masks if the algorithm does that.

    Args:
        sparsity: share of the elements that are 0, from 0 to below 1, or a schedule of it.
        init_method: method for the first mask: "random", "topk" (keeps the largest), "from_zeros" (keeps the
            elements that are not 0), "checkerboard", or a function of the weight and its sparsity.

    Raises:
        ValueError: the sparsity or the init method is none of these.
    """

    def __init__(self, sparsity: Any, init_method: InitMethod = "random") -> None:
        self._sparsity = None if sparsity is None else configure_sparsity(sparsity)
        self.init_method = init_method_of(init_method)
        self.sparse_params: dict[str, SparseParameter] = {}
        self._target_hooks: OrderedDict[int, SparsityHook] = OrderedDict()
        self._computed_hooks: OrderedDict[int, SparsityHook] = OrderedDict()

    @property
    def num_sparse_params(self) -> int:
        """Number of sparse weights."""
        return len(self.sparse_params)

    @property
    def sparsity(self) -> HyperParameterSchedule | None:
        """The schedule of the sparsity; None if the masks are given."""
        return self._sparsity

    def get_sparse_params(self, obj: nn.Module | torch.optim.Optimizer | Tensor) -> Iterator[SparseParameter]:
        """Yield the sparse weights of a module or an optimizer, or the one that is a tensor."""
        if isinstance(obj, nn.Module):
            wanted = {id(parameter) for parameter in obj.parameters()}
        elif isinstance(obj, torch.optim.Optimizer):
            wanted = {id(parameter) for group in obj.param_groups for parameter in group["params"]}
        else:
            wanted = {id(obj)}
        for sparse in self.sparse_params.values():
            if id(sparse.param) in wanted:
                yield sparse

    def initialize(self) -> None:
        """Make the first masks, and prune the weights."""
        for sparse in self.sparse_params.values():
            self._initialize(sparse)

    def csx_annotate_sparsity(self, param: SparseParameter) -> None:  # noqa: B027
        """Do nothing: the original annotates the sparsity of a weight for its compiler here."""

    def apply(self, obj: nn.Module | torch.optim.Optimizer) -> None:
        """Sparsify a model, or the steps of an optimizer.

        Raises:
            TypeError: it is neither.
        """
        if isinstance(obj, nn.Module):
            self.sparsify_module(obj)
        elif isinstance(obj, torch.optim.Optimizer):
            self.sparsify_optimizer(obj)
        else:
            raise TypeError(f"got a {type(obj).__name__} to sparsify, expected a module or an optimizer")

    def __call__(self, obj: nn.Module | torch.optim.Optimizer) -> None:
        """Sparsify the object of `model.apply` or `optimizer.apply`."""
        if _whole_of(obj) is obj:
            self.apply(obj)

    def sparsify_module(self, module: nn.Module) -> None:
        """Sparsify the weights of a model that `default_sparse_param_filter` chooses."""
        for owner, name, parameter in named_weights(module):
            if default_sparse_param_filter(name, parameter):
                self.sparsify_parameter(owner, name, parameter)

    def sparsify_parameter(self, module: nn.Module, name: str, param: Tensor) -> None:
        """Make one weight sparse.

        Args:
            module: the module of the weight.
            name: its path in the model, which ends with its name in the module.
            param: the weight.
        """
        if name not in self.sparse_params:
            sparse = self.sparse_params[name] = SparseParameter(module, name)
            self.csx_annotate_sparsity(sparse)
            self._initialize(sparse)

    def prune_weight(self, sparse_param: SparseParameter) -> None:
        """Set the elements of a weight outside of its mask to 0."""
        sparse_param.prune()

    def sparsify_optimizer(self, optimizer: torch.optim.Optimizer) -> None:
        """Prune weights and the optimizer's state after each of its steps, and update masks."""
        for sparse in self.get_sparse_params(optimizer):
            sparse.prune(_sparse_states(optimizer, sparse))
        optimizer.register_step_post_hook(lambda stepped, *_: self.update(stepped))

    @abstractmethod
    def update(self, optimizer: torch.optim.Optimizer | None = None) -> None:
        """Prune weights and state after a step of an optimizer, and update masks."""

    def register_target_sparsity_hook(self, hook: SparsityHook) -> RemovableHandle:
        """Register a hook that is called with each weight's name and target sparsity after each step."""
        return _register_hook(self._target_hooks, hook)

    def register_computed_sparsity_hook(self, hook: SparsityHook) -> RemovableHandle:
        """Register a hook that is called with each weight's name and its mask's sparsity after each step."""
        return _register_hook(self._computed_hooks, hook)

    def visit_state(self, f: Callable[[Tensor], Tensor | None]) -> None:  # noqa: B027
        """Call a function on each tensor of the state; a tensor that it returns replaces it."""

    def state_dict(self) -> dict[str, Any]:
        """Return state that is not in the model; masks are in the model."""
        return {}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:  # noqa: B027
        """Continue from a saved state."""

    def _initialize(self, sparse: SparseParameter) -> None:
        with torch.no_grad():
            first = torch.as_tensor(self._first_sparsity(), dtype=torch.float32)
            sparse.mask.copy_(self.init_method(sparse.param, first))
        sparse.prune()

    def _first_sparsity(self) -> Tensor | float:
        return 0.0 if self._sparsity is None else self._sparsity(torch.tensor(0))

    def _prune(self, optimizer: torch.optim.Optimizer | None) -> None:
        for sparse in self.sparse_params.values():
            sparse.prune([] if optimizer is None else _sparse_states(optimizer, sparse))

    def _report(self, target: Tensor | float) -> None:
        """Call the hooks."""
        for name, sparse in self.sparse_params.items():
            for hook in tuple(self._target_hooks.values()):
                hook(self, name, target)
            if self._computed_hooks:
                computed = 1 - sparse.mask.float().mean()
                for hook in tuple(self._computed_hooks.values()):
                    hook(self, name, computed)


def configure_sparsity(given: Any) -> HyperParameterSchedule:
    """Make the schedule of a sparsity.

    Raises:
        ValueError: the number is outside of [0, 1), or it is no schedule.
    """
    if isinstance(given, int | float) and not 0 <= given < 1:
        raise ValueError(f"got sparsity={given}, expected a share of zeros from 0 to below 1")
    return configure_hyperparameter("sparsity", given)


def named_weights(module: nn.Module) -> Iterator[tuple[nn.Module, str, nn.Parameter]]:
    """Yield module, path and tensor of each parameter of a model; a tied one once."""
    for name, parameter in list(module.named_parameters()):
        yield module.get_submodule(name.rpartition(".")[0]), name, parameter


def _sparse_states(optimizer: torch.optim.Optimizer, sparse: SparseParameter) -> list[Tensor]:
    """Return the states of an optimizer that have the shape of a weight."""
    names = getattr(optimizer, "state_names_to_sparsify", None)
    state = optimizer.state.get(sparse.param, {})
    wanted = state if names is None else names()
    found = [state[name] for name in wanted if isinstance(state.get(name), Tensor)]
    return [tensor for tensor in found if tensor.shape == sparse.param.shape]


def _whole_of(obj: Any) -> Any:
    """Return the module whose `nn.Module.apply` is calling, else the object itself."""
    # nn.Module.apply calls its function on each part before the whole, but filters need paths from the whole.
    whole = obj
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if frame.f_code is nn.Module.apply.__code__:
            whole = frame.f_locals["self"]
        frame = frame.f_back
    return whole


def _register_hook(hooks: OrderedDict[int, SparsityHook], hook: SparsityHook) -> RemovableHandle:
    handle = RemovableHandle(hooks)
    hooks[handle.id] = hook
    return handle


class Static(SparsityAlgorithm):
    """Masks that never change.

    Args:
        sparsity: share of the elements that are 0, from 0 to below 1; None with the init method "from_zeros".
        kwargs: arguments of `SparsityAlgorithm`.
    """

    def __init__(self, sparsity: Any = None, **kwargs: Any) -> None:
        if sparsity is None and kwargs.get("init_method") != "from_zeros":
            raise ValueError("got no sparsity, expected a share of zeros from 0 to below 1")
        super().__init__(sparsity, **kwargs)

    def update(self, optimizer: torch.optim.Optimizer | None = None) -> None:
        """Prune the weights and the state after a step of an optimizer."""
        self._prune(optimizer)
        self._report(self._first_sparsity())
