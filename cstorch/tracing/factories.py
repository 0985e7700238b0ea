"""Outside of a step: what makes tensors on the device out of nothing, or moves one of this CPU there.

PyTorch asks the backend of a device for memory, and here the memory is this CPU's. Importing this module
registers that, for `torch.zeros(..., device=device)` and `tensor.to(device)`.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import torch

from cstorch.tracing.device import DeviceTensor


def _empty(size: Sequence[int], *, dtype: torch.dtype | None = None, **_: Any) -> torch.Tensor:
    return _given(torch.empty(size, dtype=dtype))


def _empty_strided(
    size: Sequence[int], stride: Sequence[int], *, dtype: torch.dtype | None = None, **_: Any
) -> torch.Tensor:
    return _given(torch.empty_strided(size, stride, dtype=dtype))


def _given(host: torch.Tensor) -> torch.Tensor:
    """Return a tensor of the device, or of this CPU where `torch.tensor(data, device=...)` fills it.

    It does so where tensors of the device are not seen, and hands the filled one to `lift_fresh`.
    """
    hidden = torch._C._dispatch_tls_is_dispatch_key_excluded(torch._C.DispatchKey.Python)
    if hidden:
        _hand_over_filled()
        _filled[:] = [host]
    return host if hidden else DeviceTensor(host, host)


_filled: list[torch.Tensor] = []
"""The last tensor that `torch.tensor(data, device=...)` has asked for, until it is filled."""


@cache
def _hand_over_filled() -> None:
    # Not before a program needs it: it makes each `torch.tensor` of a process slower by a quarter.
    _library.impl("lift_fresh", _lift_fresh, "CPU")


def _lift_fresh(made: torch.Tensor) -> torch.Tensor:
    """Move the filled tensor to the device: a step may write into it, as into any of the device.

    PyTorch calls this last, for the results of `torch.tensor` and `torch.as_tensor` on this CPU too.
    """
    if not _filled or _filled[0] is not made:
        return made
    return DeviceTensor(made, _filled.pop())


_library = torch.library.Library("aten", "IMPL")
_library.impl("empty.memory_format", _empty, "XLA")
_library.impl("empty_strided", _empty_strided, "XLA")
