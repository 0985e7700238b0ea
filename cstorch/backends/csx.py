"""Settings of the original's appliance, by the names that programs set them under."""

from __future__ import annotations

import logging
from collections.abc import Container
from types import SimpleNamespace
from typing import Any

from cs_toolkit import object_store
from cs_toolkit.messages import Message

log = logging.getLogger("cstorch")


class Settings:
    """Takes any setting and keeps it; it has no effect here, which the log says once for each.

    They size servers and pods of the original's cluster, or switch its compiler: the system of this toolkit
    has neither. A setting that nobody has set is None.

    Args:
        group: Full name of the group, for the log.
        effective: Names of settings that are read elsewhere and have an effect.
    """

    def __init__(self, group: str, effective: Container[str] = ()) -> None:
        object.__setattr__(self, "_group", group)
        object.__setattr__(self, "_effective", effective)

    def __setattr__(self, name: str, value: Any) -> None:
        if name not in vars(self) and name not in self._effective:
            log.info("%s.%s has no effect on this system", self._group, name)
        object.__setattr__(self, name, value)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):  # what Python itself asks for
            raise AttributeError(name)
        return None


cluster = Settings("backends.csx.cluster")
debug = Settings("backends.csx.debug")
object.__setattr__(debug, "debug_args", Message())  # programs merge others into it
performance = Settings("backends.csx.performance", effective={"micro_batch_size"})
precision = Settings("backends.csx.precision")
storage = SimpleNamespace(s3=object_store.settings)
"""`storage.s3.profile` has an effect: the profile in AWS's files whose credentials are used."""
