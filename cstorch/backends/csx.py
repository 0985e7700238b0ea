"""Settings of the original's appliance, by the names that programs set them under."""

from __future__ import annotations

import logging
from typing import Any

log = logging.getLogger("cstorch")


class Settings:
    """Takes any setting and keeps it; it has no effect here, which the log says once for each.

    They size servers and pods of the original's cluster, or switch its compiler: the system of this toolkit
    has neither. A setting that nobody has set is None.
    """

    def __init__(self, group: str) -> None:
        object.__setattr__(self, "_group", group)

    def __setattr__(self, name: str, value: Any) -> None:
        if name not in vars(self):
            log.info("%s.%s has no effect on this system", self._group, name)
        object.__setattr__(self, name, value)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):  # what Python itself asks for
            raise AttributeError(name)
        return None


debug = Settings("backends.csx.debug")
performance = Settings("backends.csx.performance")
precision = Settings("backends.csx.precision")
