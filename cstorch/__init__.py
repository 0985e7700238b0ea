"""The PyTorch front end: a program's own loop, whose steps run on the CS system."""

from cs_toolkit import ORIGINAL_RELEASE
from cs_toolkit.garbage import infrequent_collection

with infrequent_collection():  # PyTorch's modules stay, and so do these
    from cstorch import (
        amp,
        backends,
        cirh,
        core,
        distributed,
        experimental,  # noqa: F401 - `cstorch.experimental`; under other names it has more
        metrics,
        nn,
        optim,
        profiler,
        saver,
        sparse,
        storage,
        utils,
    )
    from cstorch.backends import backend
    from cstorch.checkpoints import load, save
    from cstorch.chosen_backend import current_backend
    from cstorch.compatibility import accept_prefetch_factor
    from cstorch.core.annotation import (
        add_debug_name,
        current_pol,
        device_annotation,
        get_debug_name,
        name_scope,
        pol,
        set_debug_scope,
    )
    from cstorch.input.random_state import manual_seed
    from cstorch.loop.loaders import current_executor
    from cstorch.loop.steps import (
        checkpoint_closure,
        compile_step,
        save_summaries,
        scalar_summary,
        step_closure,
        summarize_scalar,
        summarize_tensor,
        trace,
    )
    from cstorch.model import predict
    from cstorch.model import prepare as compile  # noqa: A004 - as torch.compile is called
    from cstorch.program import use_cs
    from cstorch.startup import configure
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
    from cstorch.tracing.dynamo import keep_dtensor_out, keep_out_of_optimizers
    from cstorch.tracing.operations import register_decomposition
    from cstorch.utils import data as _data  # noqa: F401 - `cstorch.utils.data`

lib = mesh = core.annotation  # modules of the original for annotations

__version__ = ORIGINAL_RELEASE

# Programs leave parts out where the documents of the original are made of them.
_generating_docs = False

__all__ = [
    "__version__",
    "_generating_docs",
    "add_debug_name",
    "amp",
    "backend",
    "backends",
    "checkpoint_closure",
    "cirh",
    "compile",
    "compile_step",
    "configure",
    "core",
    "current_backend",
    "current_executor",
    "current_pol",
    "current_torch_device",
    "device",
    "device_annotation",
    "distributed",
    "from_numpy",
    "full",
    "full_like",
    "get_debug_name",
    "lib",
    "load",
    "make_constant",
    "manual_seed",
    "mesh",
    "metrics",
    "name_scope",
    "nn",
    "ones",
    "ones_like",
    "optim",
    "pol",
    "predict",
    "profiler",
    "register_decomposition",
    "save",
    "save_summaries",
    "saver",
    "scalar_summary",
    "set_debug_scope",
    "sparse",
    "step_closure",
    "storage",
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
keep_dtensor_out()
keep_out_of_optimizers()
