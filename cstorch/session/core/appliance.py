"""The appliance of later releases, which is not there."""

from __future__ import annotations

from typing import Any

from cstorch.errors import ConfigureError


class ApplianceMode:
    """Refuses to be made.

    Raises:
        ConfigureError: always.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        raise ConfigureError(
            "ApplianceMode is not there: this CS system is reached by its address; give cs_ip='IP:PORT' and "
            "no appliance"
        )
