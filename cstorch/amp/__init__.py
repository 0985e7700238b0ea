"""Mixed precision: the 16-bit type, scaling of the loss, and a whole optimizer step with it."""

from cstorch.amp.half import autocast, set_half_dtype, use_bfloat16
from cstorch.amp.optimizer_step import optimizer_step
from cstorch.amp.scaler import GradScaler
from cstorch.precision import HALF_DTYPES, half_dtype

__all__ = [
    "HALF_DTYPES",
    "GradScaler",
    "autocast",
    "half_dtype",
    "optimizer_step",
    "set_half_dtype",
    "use_bfloat16",
]
