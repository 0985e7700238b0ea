"""Settings of the original's appliance, by the names that programs set them under."""

from __future__ import annotations

import logging
from collections.abc import Collection
from types import SimpleNamespace
from typing import Any

from cs_toolkit import object_store
from cs_toolkit.messages import Message
from cstorch.errors import ConfigureError
from cstorch.program import Program

log = logging.getLogger("cstorch")


class Settings:
    """A group of settings: programs may set any name, and read it back.

    Most size servers and pods of the original's cluster, or switch its compiler. The system of this toolkit
    has neither, so they have no effect, which is logged once for each.

    Args:
        group: Full name of the group, for messages.
        defaults: The original's values of settings that programs read before they set them. Every other
            setting is None.
        effective: Names of the settings that the toolkit reads.
        choices: Allowed values, by name of the setting.
    """

    def __init__(
        self,
        group: str,
        defaults: dict[str, Any] | None = None,
        effective: Collection[str] = (),
        choices: dict[str, Collection[Any]] | None = None,
    ) -> None:
        vars(self).update(
            _group=group, _defaults=defaults or {}, _effective=effective, _choices=choices or {}
        )

    def __setattr__(self, name: str, value: Any) -> None:
        if name in self._choices and value not in self._choices[name]:
            raise ConfigureError(
                f"{self._group}.{name} is {value!r}, expected one of {list(self._choices[name])}"
            )
        values = Program.current().appliance_settings.setdefault(self._group, {})
        if name not in values and name not in self._effective:
            log.info("%s.%s has no effect on this system", self._group, name)
        values[name] = value

    def __delattr__(self, name: str) -> None:
        Program.current().appliance_settings.get(self._group, {}).pop(name, None)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):  # Python itself asks for optional methods
            raise AttributeError(name)
        values = Program.current().appliance_settings.get(self._group, {})
        return values.get(name, self._defaults.get(name))


cluster = Settings("backends.csx.cluster", {"auto_taint": False})
debug = Settings(
    "backends.csx.debug",
    {
        "debug_args": Message(),  # programs merge others into it
        "ini": Settings("backends.csx.debug.ini"),
        "drop_data": False,
        "lazy_initialization": True,
        "skip_weight_init": False,
        "optimize_initialization": True,
        "log_initialization": True,
        "retrace_every_iteration": False,
        "implicit_cast_cb16_to_fp32": False,
        "save_gpv": False,
        "check_constraints": False,
        "skip_connectivity_check": False,
    },
)
performance = Settings(
    "backends.csx.performance",
    {
        "micro_batch_size": "auto",
        "transfer_processes": 5,
        "max_transfer_bytes": 256 * 1024**2,
        "compress_weights": False,
        "use_speculative_optimizers": True,
    },
    effective={"micro_batch_size"},
)
precision = Settings(
    "backends.csx.precision", {"optimization_level": 1}, choices={"optimization_level": range(3)}
)
storage = SimpleNamespace(s3=object_store.settings)
"""`storage.s3.profile` has an effect: the profile in AWS's files whose credentials are used."""
