"""The environment of the original's servers; here, that of the program."""

from __future__ import annotations

import os
from collections.abc import Iterator, MutableMapping


class ApplianceEnvironment(MutableMapping[str, str]):
    """Environment variables for the servers of the original's cluster.

    Workers here are processes with the program's own environment, so they get the variables that are set.
    Iteration lists the variables that were set through this object.
    """

    def __init__(self) -> None:
        self._set: dict[str, None] = {}

    def __getitem__(self, name: str) -> str:
        return os.environ[name]

    def __setitem__(self, name: str, value: str) -> None:
        os.environ[name] = value
        self._set[name] = None

    def __delitem__(self, name: str) -> None:
        del os.environ[name]
        self._set.pop(name, None)

    def __contains__(self, name: object) -> bool:
        return name in os.environ

    def __iter__(self) -> Iterator[str]:
        return (name for name in self._set if name in os.environ)

    def __len__(self) -> int:
        return len(list(iter(self)))


appliance_environ = ApplianceEnvironment()
