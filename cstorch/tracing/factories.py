"""Outside of a step: what makes tensors on the device out of nothing, or moves one of this CPU there.

PyTorch asks the backend of a device for memory, and here the memory is this CPU's. Importing this module
registers that, for `torch.zeros(..., device=device)` and `tensor.to(device)`.
"""

from __future__ import annotations

from collections.abc import Sequence
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
    """A tensor of the device; of this CPU where `torch.tensor(data, device=...)` writes into it.

    It does so where tensors of the device are not seen. A step takes the result as a constant.
    """
    hidden = torch._C._dispatch_tls_is_dispatch_key_excluded(torch._C.DispatchKey.Python)
    return host if hidden else DeviceTensor(host, host)


_library = torch.library.Library("aten", "IMPL")
_library.impl("empty.memory_format", _empty, "XLA")
_library.impl("empty_strided", _empty_strided, "XLA")
