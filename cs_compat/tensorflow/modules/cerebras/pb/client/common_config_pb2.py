"""How the appliance of release 1.6 runs a program."""

from cs_compat.appliance.utils.debug_args import DebugArgs

__all__ = ["DebugArgs"]
