"""Functions of PyTorch that a step replaces: checks of values, counts, sums, factories, sparse matrices.

The compiler finds kernels by the operations that a program would write by hand. PyTorch's own composition
differs between its devices, or its gradient is opaque. Layers and losses are in `functional`.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from types import FrameType, ModuleType
from typing import Any

import torch
from torch.nn import functional as torch_functional
from torch.nn.modules.batchnorm import _BatchNorm
from torch.utils import checkpoint

from cstorch.errors import StepError, TensorReadError
from cstorch.tracing.device import require
from cstorch.tracing.functional import (
    PACKING,
    _weight_norm,
    embedding_bag,
    forward,
    frobenius_norm,
    gaussian_nll_loss,
    grid_sampler,
    householder_product,
    matrix_rank,
    multi_margin_loss,
    multilabel_margin_loss,
    pinv,
    pinverse,
    renorm,
    rrelu,
    scaled_dot_product_attention,
)
from cstorch.tracing.selections import make_sized

_check_with_of_torch = torch._check_with
_MESSAGES = ("msg", "message")


def _assert(condition: Any, message: str) -> None:
    """`torch._assert`."""
    require(condition, AssertionError(message))


def _assert_async(condition: Any, message: str = "") -> None:
    """`torch._assert_async`."""
    require(condition, RuntimeError(message))


def _check_with(error_type: type[Exception], cond: Any, message: Any = None) -> None:
    """`torch._check_with`."""
    # PyTorch's function imports a library for symbols even if the condition is True.
    if isinstance(cond, torch.Tensor):
        _check_tensor_all_with(error_type, cond, message)
    elif cond is not True:
        _check_with_of_torch(error_type, cond, message)


def _check_tensor_all_with(error_type: type[Exception], cond: torch.Tensor, message: Any = None) -> None:
    """`torch._check_tensor_all_with`."""
    text = message() if callable(message) else message or _message_of_caller() or "a condition is not true"
    require(cond.all(), error_type(text))


def _message_of_caller() -> str | None:
    """Return the message of the calling check, which omits it while a compiler traces the program."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_code.co_filename in (__file__, torch.__file__):
        frame = frame.f_back
    found = (None if frame is None else frame.f_locals.get(name) for name in _MESSAGES)
    return next((text for text in found if isinstance(text, str)), None)


@contextmanager
def without_distribution_checks() -> Iterator[None]:
    """Make distributions not check their arguments in the body, unless a program asks them to."""
    kind = torch.distributions.Distribution
    kept = kind._validate_args
    kind.set_default_validate_args(False)
    try:
        yield
    finally:
        kind._validate_args = kept


_CHECKS: tuple[Callable[..., Any], ...] = (_assert, _assert_async, _check_tensor_all_with, _check_with)


_bincount, _tensor_split = torch.bincount, torch.tensor_split
_repeat_interleave = torch.repeat_interleave


def bincount(
    input: torch.Tensor,  # noqa: A002 - as torch calls it
    weights: torch.Tensor | None = None,
    minlength: int = 0,
) -> torch.Tensor:
    """`torch.bincount` of numbers below `minlength`: in a step a result has that many elements.

    Numbers of `minlength` and above, for which PyTorch makes the result longer, are left out.

    Raises:
        StepError: `minlength` is not given, so that the size of the result depends on the numbers.
    """
    if input.device.type == "cpu":
        return _bincount(input, weights, minlength)
    if not minlength:
        raise StepError(
            "torch.bincount got no minlength, so the size of its result depends on the data; give minlength, "
            "one more than the largest number that can occur"
        )
    amounts = torch.ones_like(input) if weights is None else weights
    inside = (input >= 0) & (input < minlength)
    counts = torch.zeros(minlength, dtype=amounts.dtype, device=input.device)
    return counts.index_add(0, torch.where(inside, input, 0), torch.where(inside, amounts, 0))


def repeat_interleave(
    input: torch.Tensor,  # noqa: A002 - as torch calls it
    *given: Any,
    output_size: int | None = None,
    **named: Any,
) -> torch.Tensor:
    """`torch.repeat_interleave`, the size of whose result depends on the repeats.

    Raises:
        StepError: these differ from step to step, and `output_size` is not given.
    """
    repeats, dim = (*given, None, None)[:2]
    repeats, dim = named.get("repeats", repeats), named.get("dim", dim)
    counts = input if repeats is None else repeats
    if output_size is None and isinstance(counts, torch.Tensor) and counts.device.type != "cpu":
        try:
            output_size = int(counts.numpy().sum())
        except TensorReadError as error:
            raise StepError(
                "torch.repeat_interleave got numbers of the step and no output_size, so the size of its "
                "result depends on the data; give output_size, the sum of the numbers"
            ) from error
        if repeats is not None and counts.numel() == 1:
            output_size *= input.numel() if dim is None else input.size(dim)
    with torch._C.DisableTorchFunctionSubclass():
        if repeats is None:
            return _repeat_interleave(input, output_size=output_size)
        return _repeat_interleave(input, repeats, dim, output_size=output_size)


def tensor_split(input: torch.Tensor, *where: Any, **named: Any) -> tuple[torch.Tensor, ...]:  # noqa: A002
    """`torch.tensor_split`, which reads its indices if they are a tensor.

    Raises:
        TensorReadError: these differ from step to step.
    """
    if where and isinstance(where[0], torch.Tensor):
        where = (where[0].tolist(), *where[1:])
    places = named.pop("tensor_indices_or_sections", None)
    if places is not None:
        where = (places.tolist(), *where)
    with torch._C.DisableTorchFunctionSubclass():
        found: tuple[torch.Tensor, ...] = _tensor_split(input, *where, **named)
    return found


_NAMES = ("add", "sub", "addcdiv", "addcmul")
_FACTORS = ("alpha", "value")


def _with_factor(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function whose factor may be a tensor in a step, as in `p.add_(g, alpha=-lr)`."""

    def add(tensor: Any, operand: Any, *others: Any, **named: Any) -> Any:
        for name in _FACTORS:
            if isinstance(named.get(name), torch.Tensor):
                operand = operand * named.pop(name)
        with torch._C.DisableTorchFunctionSubclass():
            return function(tensor, operand, *others, **named)

    return add


_ORIGINALS = [
    *(getattr(torch.Tensor, f"{name}{ending}") for name in _NAMES for ending in ("", "_")),
    *(getattr(torch, name) for name in _NAMES),
]

SUMS: Mapping[Any, Callable[..., Any]] = {function: _with_factor(function) for function in _ORIGINALS}
"""Sums by the functions that they replace."""


# Factories: PyTorch copies numbers of Python into tensors past `__torch_function__` of the device's tensors.


_tensor, _as_tensor = torch.tensor, torch.as_tensor


def tensor(data: Any, *, device: Any = None, **settings: Any) -> torch.Tensor:
    """`torch.tensor`."""
    return _move(_tensor(data, **settings), device)


def as_tensor(data: Any, dtype: torch.dtype | None = None, device: Any = None) -> torch.Tensor:
    """`torch.as_tensor`."""
    if isinstance(data, torch.Tensor):
        return data.to(device=device or data.device, dtype=dtype or data.dtype)
    return _move(_as_tensor(data, dtype=dtype), device)


def new_tensor(like: torch.Tensor, data: Any, *, device: Any = None, **settings: Any) -> torch.Tensor:
    """`Tensor.new_tensor`, of the type and on the device of another tensor."""
    made = data if isinstance(data, torch.Tensor) else _tensor(data, **{"dtype": like.dtype, **settings})
    return _move(made, like.device if device is None else device)


def _move(made: torch.Tensor, device: Any) -> torch.Tensor:
    grad = made.requires_grad
    moved = made if device is None else made.detach().to(device)
    return moved.requires_grad_() if grad else moved


def _accept_selected_size(make: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    """Return a factory that can make as many rows as a selection has."""

    def make_tensor(*args: Any, **settings: Any) -> torch.Tensor:
        if "size" in settings:
            return make_sized(make, (settings.pop("size"),), args, settings)
        if not args:
            return make(**settings)
        whole = make is not torch.full and isinstance(args[0], int | torch.Tensor)
        sizes, others = (args, ()) if whole else (args[:1], args[1:])
        return make_sized(make, sizes, others, settings)

    make_tensor.__name__ = make.__name__
    return make_tensor


_SIZED = tuple(_accept_selected_size(make) for make in (torch.empty, torch.full, torch.ones, torch.zeros))


_sparse_coo_tensor = torch.sparse_coo_tensor


def mm(mat1: torch.Tensor, mat2: torch.Tensor) -> torch.Tensor:
    """`torch.sparse.mm`."""
    return _dense(mat1) @ _dense(mat2)


def addmm(
    mat: torch.Tensor, mat1: torch.Tensor, mat2: torch.Tensor, *, beta: float = 1.0, alpha: float = 1.0
) -> torch.Tensor:
    """`torch.sparse.addmm`."""
    return torch.addmm(mat, _dense(mat1), _dense(mat2), beta=beta, alpha=alpha)


def sparse_coo_tensor(
    indices: Any, values: Any = None, size: Any = None, *, device: Any = None, **settings: Any
) -> torch.Tensor:
    """`torch.sparse_coo_tensor`: a dense tensor if its elements are on the device.

    Raises:
        ValueError: the step computes the elements, and the size is missing.
    """
    given = [x for x in (indices, values) if isinstance(x, torch.Tensor)]
    if all(x.device.type == "cpu" for x in given):
        sizes = () if size is None else (size,)
        made = _sparse_coo_tensor(indices, values, *sizes, **settings)
        return made if device is None else made.to_dense().to(device)
    if size is None:
        raise ValueError(
            "the size of a sparse tensor depends on its indices, which only the step knows; "
            "expected torch.sparse_coo_tensor(indices, values, size)"
        )
    values = torch.as_tensor(values)
    dense = torch.zeros(size, dtype=settings.get("dtype") or values.dtype, device=values.device)
    return dense.index_put(tuple(torch.as_tensor(indices)), values.to(dense.dtype), accumulate=True)


def _dense(matrix: torch.Tensor) -> torch.Tensor:
    return matrix if matrix.layout is torch.strided else matrix.to_dense()


# Gradient checkpointing: the compiler sees forward and backward pass together and decides which activations
# are kept, so a checkpointed function runs once. A second run would draw other random numbers.


class CheckpointFunction:
    """Replaces the class of this name in `torch.utils.checkpoint`, which `use_reentrant=True` applies."""

    @staticmethod
    def apply(function: Callable[..., Any], preserve_rng_state: bool, *args: Any) -> Any:
        """Call the function and return its results."""
        return function(*args)


def _checkpoint_without_reentrant_generator(*_: Any, **__: Any) -> Iterator[None]:
    """Replace the context of `use_reentrant=False` by an empty one."""
    yield


_CHECKPOINTING = (CheckpointFunction, _checkpoint_without_reentrant_generator)


_OURS: Mapping[ModuleType | type, tuple[Callable[..., Any], ...]] = {
    torch_functional: (
        embedding_bag,
        gaussian_nll_loss,
        multi_margin_loss,
        multilabel_margin_loss,
        rrelu,
        scaled_dot_product_attention,
    ),
    torch: (
        bincount,
        grid_sampler,
        pinverse,
        tensor,
        as_tensor,
        *_SIZED,
        renorm,
        repeat_interleave,
        sparse_coo_tensor,
        tensor_split,
        _weight_norm,
        *_CHECKS,
    ),
    torch.sparse: (mm, addmm),
    torch.linalg: (householder_product, matrix_rank, pinv),
    _BatchNorm: (forward,),
    checkpoint: _CHECKPOINTING,
    torch._VF: (frobenius_norm, *PACKING),
}
_FUNCTIONS = [(module, function.__name__, function) for module, found in _OURS.items() for function in found]

COMPOSED: Mapping[Any, Callable[..., Any]] = {
    **{
        getattr(module, name): function
        for module, name, function in _FUNCTIONS
        if function not in _SIZED  # they call what they replace
    },
    torch.orgqr: householder_product,
    torch.Tensor.orgqr: householder_product,
    torch.Tensor.bincount: bincount,
    torch.Tensor.pinverse: pinverse,
    torch.Tensor.renorm: renorm,
    torch.Tensor.repeat_interleave: repeat_interleave,
    torch.Tensor.tensor_split: tensor_split,
    torch.Tensor.new_tensor: new_tensor,
    **SUMS,
}
"""Replacements by the functions that they replace."""


@contextmanager
def replaced_functions() -> Iterator[None]:
    """Patch the replacements into PyTorch's modules, for calls past `__torch_function__`."""
    originals = [(module, name, getattr(module, name)) for module, name, _ in _FUNCTIONS]
    try:
        for module, name, function in _FUNCTIONS:
            setattr(module, name, function)
        with without_distribution_checks():
            yield
    finally:
        for module, name, function in originals:
            setattr(module, name, function)
