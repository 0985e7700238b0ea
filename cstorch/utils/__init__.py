"""What programs import beside the functions of the package itself."""

from cstorch.distributed.cluster import CSConfig
from cstorch.utils import data, tensorboard

__all__ = ["CSConfig", "data", "tensorboard"]
