"""Helpers of run scripts, as releases 1.7 to 2.2 import them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cs_compat.appliance.utils.debug_args import (
    DebugArgs,
    get_debug_args,
    update_debug_args_from_keys,
    write_debug_args,
)
from cs_compat.appliance.utils.ini import set_default_ini, set_ini
from cs_toolkit.messages import Message

__all__ = [
    "DebugArgs",
    "get_debug_args",
    "set_default_ini",
    "set_ini",
    "update_debug_args_from_keys",
    "update_debug_args_with_autogen_policy",
    "update_debug_args_with_mem_limits",
    "write_debug_args",
]

_MEMORY_LIMITS = {
    "compile_crd_memory_gi": "compile_coord_resource",
    "execute_crd_memory_gi": "execute_coord_resource",
    "wrk_memory_gi": "worker_resource",
    "act_memory_gi": "activation_resource",
    "cmd_memory_gi": "command_resource",
    "wgt_memory_gi": "weight_resource",
}


def update_debug_args_with_autogen_policy(debug_args: Message, policy: Any = None) -> None:
    """Set when the original's compiler generates kernels; the compiler here generates any that it lacks.

    Args:
        debug_args: The debug arguments.
        policy: "default", "disabled", "mild", "medium" or "aggressive"; None sets nothing.
    """
    if policy is not None:
        debug_args.debug_crd.autogen_policy = policy


def update_debug_args_with_mem_limits(
    debug_args: Message, runconfig: Mapping[str, Any] | None = None
) -> None:
    """Set the memory of the original's servers, in GiB, from settings such as `wrk_memory_gi`.

    Args:
        debug_args: The debug arguments.
        runconfig: Settings of a run; all others are ignored.
    """
    for name, resource in _MEMORY_LIMITS.items():
        if (limit := (runconfig or {}).get(name)) is not None:
            getattr(debug_args.debug_usr, resource).memory_bytes = int(limit) << 30
