"""Mixed precision: the 16-bit type, scaling of the loss, and a whole optimizer step with it."""

from importlib import import_module
from typing import Any

from cstorch.amp.half import (
    autocast,
    disable_casts,
    enable_mixed_precision,
    float_function,
    get_floating_point_dtype,
    get_floating_point_dtype_str,
    get_half_dtype,
    get_half_dtype_str,
    half_function,
    init,
    is_cbfloat16_tensor,
    mixed_precision,
    promote_function,
    register_float_function,
    register_half_function,
    register_promote_function,
    set_half_dtype,
    use_bfloat16,
)
from cstorch.amp.loss_scaling import GradScaler, isfinite, optimizer_step, setup_optimizer, update_if_finite
from cstorch.tracing.precision import HALF_DTYPES, half_dtype

__all__ = [
    "HALF_DTYPES",
    "GradScaler",
    "autocast",
    "disable_casts",
    "enable_mixed_precision",
    "float_function",
    "get_floating_point_dtype",
    "get_floating_point_dtype_str",
    "get_half_dtype",
    "get_half_dtype_str",
    "half_dtype",
    "half_function",
    "init",
    "is_cbfloat16_tensor",
    "isfinite",
    "mixed_precision",
    "optimizer_step",
    "promote_function",
    "register_float_function",
    "register_half_function",
    "register_promote_function",
    "set_half_dtype",
    "setup_optimizer",
    "update_if_finite",
    "use_bfloat16",
]

_OF_SESSIONS = ("_amp_state", "get_init_params", "load_state_dict", "state_dict")


def __getattr__(name: str) -> Any:
    """Return a function of the session API, which releases 1.8 and 1.9 have in this module too."""
    if name not in _OF_SESSIONS:
        raise AttributeError(f"module 'cstorch.amp' has no attribute {name!r}")
    return getattr(import_module("cstorch.v1.session.amp"), name)
