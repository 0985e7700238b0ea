"""The original's appliance: errors, logs, debug arguments and storage, for programs of all front ends."""

from cs_compat.appliance.log import logger
from cs_runtime.options import DEFAULT_COMPILE_DIR

__all__ = ["DEFAULT_COMPILE_DIR", "logger"]
