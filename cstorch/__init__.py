"""The PyTorch front end: a program's own loop, whose steps run on the CS system."""

from typing import Any

from cs_toolkit.garbage import seldom_searched

with seldom_searched():  # PyTorch's modules stay, and so do these
    from cstorch import amp, backends, distributed, metrics, nn, optim, sparse, utils
    from cstorch.backends import backend, current_backend
    from cstorch.checkpoints import load, save
    from cstorch.compiled import use_cs
    from cstorch.config import configure
    from cstorch.executor import current_executor
    from cstorch.limits import absent
    from cstorch.loader_options import accept_prefetch_factor
    from cstorch.model import prepare as compile  # noqa: A004 - as torch.compile is called
    from cstorch.predict import predict
    from cstorch.scopes import add_debug_name, current_pol, name_scope, pol
    from cstorch.seed import manual_seed
    from cstorch.steps import checkpoint_closure, compile_step, step_closure, trace
    from cstorch.summaries import save_summaries, scalar_summary, summarize_scalar, summarize_tensor
    from cstorch.tensors import (
        current_torch_device,
        device,
        from_numpy,
        full,
        full_like,
        make_constant,
        ones,
        ones_like,
        tensor,
        to_numpy,
        zeros,
        zeros_like,
    )
    from cstorch.utils import data as _data  # noqa: F401 - `cstorch.utils.data`

__all__ = [
    "add_debug_name",
    "amp",
    "backend",
    "backends",
    "checkpoint_closure",
    "compile",
    "compile_step",
    "configure",
    "current_backend",
    "current_executor",
    "current_pol",
    "current_torch_device",
    "device",
    "distributed",
    "from_numpy",
    "full",
    "full_like",
    "load",
    "make_constant",
    "manual_seed",
    "metrics",
    "name_scope",
    "nn",
    "ones",
    "ones_like",
    "optim",
    "pol",
    "predict",
    "save",
    "save_summaries",
    "scalar_summary",
    "sparse",
    "step_closure",
    "summarize_scalar",
    "summarize_tensor",
    "tensor",
    "to_numpy",
    "trace",
    "use_cs",
    "utils",
    "zeros",
    "zeros_like",
]


accept_prefetch_factor()


def __getattr__(name: str) -> Any:
    """Says why a name of the original is not there."""
    return absent(name)
