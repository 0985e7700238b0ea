"""How a TensorFlow program of the appliance generation is run."""

from __future__ import annotations

from typing import Any

from cs_compat.appliance.CSConfig import CSConfig
from estimator import config


class CSRunConfig(config.CSRunConfig):
    """`estimator.CSRunConfig` whose CS system is that of a `CSConfig`.

    Args:
        cs_config: `cerebras_appliance.CSConfig.CSConfig`.
        **fields: As there; a field that is given wins over that of `cs_config`.
    """

    def __init__(self, cs_config: Any = None, **fields: Any) -> None:
        if isinstance(cs_config, CSConfig):
            fields = {**cs_config.settings(), **fields}
        super().__init__(cs_config=cs_config, **fields)
