"""The devices of a group of wafers, one process each, as XLA sees them."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from importlib import import_module
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from cs_system.address import SystemAddress, is_loopback, parse_address

_AXIS = "csx"
_POLL_S = 0.01

_PartitionSpec: Callable[..., Any] = PartitionSpec
_initialize: Callable[..., None] = jax.distributed.initialize
_from_parts: Callable[..., Any] = jax.make_array_from_single_device_arrays
_devices: Callable[[], Any] = jax.devices
_local_devices: Callable[[], Any] = jax.local_devices
_jax: Any = import_module("jaxlib._jax")
_make_gloo: Callable[..., Any] = _jax.make_gloo_tcp_collectives


def _meet_at(address: str) -> None:
    """Where gloo listens; it would take what the name of the machine stands for, which may be its loopback.

    No public name of JAX says it.
    """
    _jax.make_gloo_tcp_collectives = partial(_make_gloo, hostname=address)


def wait_for_listener(address: SystemAddress, timeout_s: float = 60.0) -> bool:
    """Whether somebody listens there in time. JAX, where nobody does yet, calls again only after a second."""
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        with suppress(OSError), socket.create_connection((address.host, address.port), timeout_s):
            return True
        time.sleep(_POLL_S)
    return False


def _join(coordinator: str, count: int, rank: int) -> None:
    """The first process lets the others come to it, on loopback alone if that is where they are."""
    address = parse_address(coordinator)
    options = {}
    if rank:
        wait_for_listener(address)  # JAX says what is wrong where nobody does
    elif is_loopback(address.host):
        options["coordinator_bind_address"] = coordinator
    _initialize(coordinator, count, rank, **options)


class GroupDevices:
    """See `cs_system.engine.executable.Devices`: the sums over the batch are XLA's, in an order that stays.

    Args:
        coordinator: HOST:PORT where the processes of the group meet; the first one listens there.
        count: Of wafers.
        rank: Of this one, from 0.
        address: Of this machine, under which the others reach it.
    """

    def __init__(self, coordinator: str, count: int, rank: int, address: str) -> None:
        settings: Any = jax.config
        _meet_at(address)
        settings.update("jax_cpu_collectives_implementation", "gloo")
        _join(coordinator, count, rank)
        mesh = Mesh(np.array(_devices()), (_AXIS,))
        self.whole: Any = NamedSharding(mesh, _PartitionSpec())
        self.by_sample: Any = NamedSharding(mesh, _PartitionSpec(_AXIS))
        (self._device,) = _local_devices()

    def put(self, array: np.ndarray) -> Any:
        """A value that is the same on all."""
        return _from_parts(array.shape, self.whole, [jax.device_put(array, self._device)])

    def put_share(self, share: np.ndarray, shape: tuple[int, ...]) -> Any:
        """A value of which each wafer has the samples of its own.

        Args:
            share: Those of this one.
            shape: Of all.
        """
        return _from_parts(shape, self.by_sample, [jax.device_put(share, self._device)])
