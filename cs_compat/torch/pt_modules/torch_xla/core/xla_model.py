"""The place of this task in its job."""

from cstorch.v1.session.core.cb_model import get_ordinal
from cstorch.v1.session.core.cb_model import num_tasks as xrt_world_size

__all__ = ["get_ordinal", "xrt_world_size"]
