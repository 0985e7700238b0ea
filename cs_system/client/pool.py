"""Several CS systems as one pool: their status, asked for at the same time."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from cs_system.address import SystemAddress
from cs_system.client import SystemClient
from cs_system.errors import CsSystemError
from cs_system.status import SystemInfo


def read_statuses(
    addresses: Sequence[SystemAddress],
) -> list[tuple[SystemAddress, SystemInfo | CsSystemError]]:
    """Return the status of each system, or why there is none, in the order of the addresses."""

    def read(address: SystemAddress) -> SystemInfo | CsSystemError:
        try:
            with SystemClient(address) as client:
                return client.info()
        except CsSystemError as error:
            return error

    with ThreadPoolExecutor(len(addresses), thread_name_prefix="status") as threads:
        return list(zip(addresses, threads.map(read, addresses), strict=True))
