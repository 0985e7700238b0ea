"""What a process computes on: the CS system, or this CPU."""

from cstorch.backends import csx
from cstorch.backends.chosen import (
    Backend,
    BackendType,
    Device,
    backend,
    current_backend,
    on_cpu,
    on_csx,
)

__all__ = ["Backend", "BackendType", "Device", "backend", "csx", "current_backend", "on_cpu", "on_csx"]
