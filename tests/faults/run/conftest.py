from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.programs.fork_server import ForkServers


@pytest.fixture(scope="session")
def fork_servers() -> Iterator[ForkServers]:
    """Processes that have imported a framework, in whose forks programs run."""
    with ForkServers() as servers:
        yield servers
