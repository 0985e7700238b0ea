"""Backends, on which a program computes: the CS system, or this CPU."""

import cstorch.hooks as ltc_backend
from cstorch.backends import csx
from cstorch.chosen_backend import Backend, Device, current_backend, on_cpu, on_csx
from cstorch.config import BackendType
from cstorch.startup import backend, get_backend_args

current_backend_impl = current_backend
use_cs = on_csx

__all__ = [
    "Backend",
    "BackendType",
    "Device",
    "backend",
    "csx",
    "current_backend",
    "current_backend_impl",
    "get_backend_args",
    "ltc_backend",
    "on_cpu",
    "on_csx",
    "use_cs",
]
