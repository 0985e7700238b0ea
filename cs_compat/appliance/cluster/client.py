"""Clients of servers of the original's cluster."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from functools import cache
from typing import Any

log = logging.getLogger("cerebras")


class TelemetryClient:
    """Accepts metrics for the original's cluster. No server collects them here, which is logged once.

    Args:
        mgmt_client: `backend.cluster.client`.
        max_buffer_size: Accepted without effect.
        max_buffer_seconds: Accepted without effect.
    """

    def __init__(self, mgmt_client: Any, max_buffer_size: int = 128, max_buffer_seconds: int = 150) -> None:
        self.mgmt_client = mgmt_client
        _log_not_collected()

    def __enter__(self) -> TelemetryClient:
        return self

    def __exit__(self, *error: object) -> None:
        return None

    @property
    def job_id(self) -> str | None:
        """The job of the original's cluster: None."""
        return None

    def push(self, metrics: Mapping[str, Any], labels: Mapping[str, str] | None = None) -> None:
        """Accept metrics without effect."""

    def flush_data(self) -> None:
        """Do nothing: no metrics are buffered."""


@cache
def _log_not_collected() -> None:
    log.info("metrics for the original's cluster are not collected here; they are in the logs of the run")
