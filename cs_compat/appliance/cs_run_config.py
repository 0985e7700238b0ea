"""The run configuration of TensorFlow programs of the appliance generation."""

from __future__ import annotations

from typing import Any

from cs_compat.appliance.CSConfig import CSConfig
from estimator import config


class CSRunConfig(config.CSRunConfig):
    """An `estimator.CSRunConfig` with the CS system of a `CSConfig`.

    Args:
        cs_config: A `cerebras_appliance.CSConfig.CSConfig`.
        **fields: Fields of `estimator.CSRunConfig`, which override those of `cs_config`.
    """

    def __init__(self, cs_config: Any = None, **fields: Any) -> None:
        if isinstance(cs_config, CSConfig):
            fields = {**cs_config.settings(), **fields}
        super().__init__(cs_config=cs_config, **fields)
