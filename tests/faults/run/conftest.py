from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.programs.fork_server import ForkServers


@pytest.fixture(scope="session")
def fork_servers() -> Iterator[ForkServers]:
    """Processes that have imported a framework, in whose forks programs run."""
    with ForkServers() as servers:
        yield servers


@pytest.fixture(scope="session")
def forked(fork_servers: ForkServers) -> tuple[str, ...]:
    """Return the words before a program of NumPy that runs in a fork, for jobs whose tasks get no signal."""
    return fork_servers.launcher("numpy")
