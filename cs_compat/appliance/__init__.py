"""The original's appliance: errors, logs, debug arguments and storage, for programs of all front ends."""

from cs_compat.appliance.log import logger

DEFAULT_COMPILE_DIR = "/opt/cerebras/cached_compile"
"""A folder of the original's appliance, which stands for the one of the model."""

__all__ = ["DEFAULT_COMPILE_DIR", "logger"]
